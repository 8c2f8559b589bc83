"""/admin/organisations."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.admin.answers import (
    Deleted,
    Organisation,
    OrganisationList,
    list_answer,
    organisation_answer,
)
from pagoda_gateway.admin.bodies import NewOrganisation, OrganisationChange
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Limit, admin_router


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("organisations")
    organisations, bodies = gateway.tenancy.organisations, BodyReader.of(gateway)

    @router.post("", openapi_extra=described(Organisation, body=NewOrganisation))
    async def create_organisation(request: Request) -> dict[str, Any]:
        """Create an organisation."""
        async with read_body(request, NewOrganisation, bodies) as body:
            return organisation_answer(
                await organisations.create(body.id, tier=body.tier, label=body.label)
            )

    @router.get("", openapi_extra=described(OrganisationList))
    async def list_organisations(limit: Limit = 100, after: After = "") -> dict[str, Any]:
        """List organisations."""
        page = await organisations.page(after=after, limit=limit)
        return list_answer(page.rows, page.has_more, organisation_answer)

    @router.get("/{organisation}", openapi_extra=described(Organisation))
    async def get_organisation(organisation: str) -> dict[str, Any]:
        """Describe one organisation."""
        return organisation_answer(await organisations.records.get(organisation))

    @router.patch("/{organisation}", openapi_extra=described(Organisation, body=OrganisationChange))
    async def update_organisation(organisation: str, request: Request) -> dict[str, Any]:
        """Change what is sent."""
        async with read_body(request, OrganisationChange, bodies) as body:
            return organisation_answer(await organisations.update(organisation, body.given()))

    @router.delete("/{organisation}", openapi_extra=described(Deleted))
    async def delete_organisation(organisation: str) -> dict[str, Any]:
        """Delete an organisation that has no tenants; its id stays taken."""
        await organisations.delete(organisation)
        return Deleted(id=organisation, object="organisation").model_dump()

    return router
