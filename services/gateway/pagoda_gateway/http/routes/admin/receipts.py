"""/admin/receipts: those of all tenants."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from pagoda_gateway.accounts.money.receipts import receipt_of
from pagoda_gateway.admin.bodies import LAST_UNIX_SECONDS
from pagoda_gateway.admin.money_answers import ReceiptList
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Limit, admin_router
from pagoda_gateway.openai.schemas.receipts import Receipt

Tenant = Annotated[str, Query(max_length=128, description="Whose.")]
Since = Annotated[float, Query(ge=0, le=LAST_UNIX_SECONDS, description="Opened then or later.")]
Until = Annotated[float, Query(ge=0, le=LAST_UNIX_SECONDS, description="Opened before.")]


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("receipts")
    money = gateway.money

    @router.get("", openapi_extra=described(ReceiptList))
    async def list_receipts(
        tenant: Tenant,
        since: Since = 0,
        until: Until = LAST_UNIX_SECONDS,
        limit: Limit = 100,
        after: After = "",
    ) -> dict[str, Any]:
        """List a tenant's receipts that have a number, in the order in which they were opened."""
        rows = await money.statements.receipts(
            tenant,
            since_unix_seconds=since,
            until_unix_seconds=until,
            after=after,
            limit=limit + 1,
        )
        data = [receipt_of(row) for row in rows[:limit]]
        return {"object": "list", "data": data, "has_more": len(rows) > limit}

    @router.get("/{request_id}", openapi_extra=described(Receipt))
    async def get_receipt(request_id: str) -> dict[str, Any]:
        """Return one receipt, whosever it is, by our id or OpenAI's."""
        return await money.receipts.get(None, request_id)

    return router
