"""/admin/tiers."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.admin.answers import Deleted, Tier, TierList, list_answer, tier_answer
from pagoda_gateway.admin.bodies import NewTier, TierChange
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Limit, admin_router


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("tiers")
    tiers, bodies = gateway.tenancy.tiers, BodyReader.of(gateway)

    @router.post("", openapi_extra=described(Tier, body=NewTier))
    async def create_tier(request: Request) -> dict[str, Any]:
        """Create a tier."""
        async with read_body(request, NewTier, bodies) as body:
            return tier_answer(await tiers.create(body.id, body.model_dump(exclude={"id"})))

    @router.get("", openapi_extra=described(TierList))
    async def list_tiers(limit: Limit = 100, after: After = "") -> dict[str, Any]:
        """List tiers."""
        page = await tiers.page(after=after, limit=limit)
        return list_answer(page.rows, page.has_more, tier_answer)

    @router.get("/{tier}", openapi_extra=described(Tier))
    async def get_tier(tier: str) -> dict[str, Any]:
        """Describe one tier."""
        return tier_answer(await tiers.records.get(tier))

    @router.patch("/{tier}", openapi_extra=described(Tier, body=TierChange))
    async def update_tier(tier: str, request: Request) -> dict[str, Any]:
        """Change what is sent."""
        async with read_body(request, TierChange, bodies) as body:
            return tier_answer(await tiers.update(tier, body.given()))

    @router.delete("/{tier}", openapi_extra=described(Deleted))
    async def delete_tier(tier: str) -> dict[str, Any]:
        """Delete a tier that nobody has."""
        await tiers.delete(tier)
        return Deleted(id=tier, object="tier").model_dump()

    return router
