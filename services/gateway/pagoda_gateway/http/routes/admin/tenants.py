"""/admin/tenants."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.admin.answers import Deleted, Tenant, TenantList, list_answer, tenant_answer
from pagoda_gateway.admin.bodies import NewTenant, TenantChange
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Filter, Limit, admin_router


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("tenants")
    tenants, bodies = gateway.tenancy.tenants, BodyReader.of(gateway)

    @router.post("", openapi_extra=described(Tenant, body=NewTenant))
    async def create_tenant(request: Request) -> dict[str, Any]:
        """Create a tenant of an organisation."""
        async with read_body(request, NewTenant, bodies) as body:
            return tenant_answer(
                await tenants.create(
                    body.id, organisation=body.organisation, tier=body.tier, label=body.label
                )
            )

    @router.get("", openapi_extra=described(TenantList))
    async def list_tenants(
        organisation: Filter = None, limit: Limit = 100, after: After = ""
    ) -> dict[str, Any]:
        """List tenants, of one organisation if it is named."""
        page = await tenants.page(organisation=organisation, after=after, limit=limit)
        return list_answer(page.rows, page.has_more, tenant_answer)

    @router.get("/{tenant}", openapi_extra=described(Tenant))
    async def get_tenant(tenant: str) -> dict[str, Any]:
        """Describe one tenant."""
        return tenant_answer(await tenants.records.get(tenant))

    @router.patch("/{tenant}", openapi_extra=described(Tenant, body=TenantChange))
    async def update_tenant(tenant: str, request: Request) -> dict[str, Any]:
        """Change what is sent."""
        async with read_body(request, TenantChange, bodies) as body:
            return tenant_answer(await tenants.update(tenant, body.given()))

    @router.delete("/{tenant}", openapi_extra=described(Deleted))
    async def delete_tenant(tenant: str) -> dict[str, Any]:
        """Revoke the tenant's keys and delete it; receipts stay, and its id stays taken."""
        await tenants.delete(tenant)
        return Deleted(id=tenant, object="tenant").model_dump()

    return router
