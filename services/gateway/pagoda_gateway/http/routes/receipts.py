"""GET /v1/receipts/{x-request-id}: what one request used."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.database_route import DatabaseRoute
from pagoda_gateway.openai.schemas.receipts import Receipt


def make_router(gateway: Gateway) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["receipts"], route_class=DatabaseRoute)

    @router.get("/v1/receipts/{request_id}", openapi_extra=described(Receipt))
    async def get_receipt(request_id: str, request: Request) -> dict[str, Any]:
        """Return the receipt of one of the caller's own tenant's requests."""
        tenant = caller_of(request).key.tenant
        name = gateway.usage_log.latest(tenant, request_id) or request_id
        return await gateway.money.receipts.get(tenant, name)

    return router
