"""/admin/prefixes: why prompts were not in the cache, and what that cost."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from pagoda_gateway.accounts.prefixes.report import PrefixReport
from pagoda_gateway.admin.answers import PrefixMissList
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import Filter, Limit, admin_router

Hours = Annotated[float, Query(ge=0.1, le=168, description="How far back to look.")]


def make_router(gateway: Gateway) -> APIRouter:
    """Return the route."""
    router = admin_router("prefixes")
    report = PrefixReport(gateway.ledger.database)

    @router.get("", openapi_extra=described(PrefixMissList))
    async def list_prefix_misses(
        tenant: Filter = None, hours: Hours = 1.0, limit: Limit = 100
    ) -> dict[str, Any]:
        """List why prompts were not in the cache, the costliest reasons first."""
        found = await report.misses(tenant=tenant, hours=hours, limit=limit)
        return {"object": "list", "hours": hours, "data": found}

    return router
