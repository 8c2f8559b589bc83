"""/admin/chains: whether receipts are as they were given out."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from pagoda_gateway.accounts.money.chains import as_json
from pagoda_gateway.accounts.money.receipt_text import FIRST_PREVIOUS_HASH
from pagoda_gateway.admin.answers import list_answer
from pagoda_gateway.admin.bodies import MAX_JSON_INTEGER
from pagoda_gateway.admin.money_answers import ChainCheckAnswer, ChainList, chain_answer
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Limit, admin_router

Number = Annotated[
    int | None,
    Query(ge=0, le=MAX_JSON_INTEGER, description="last_number of the check before; with its hash."),
]
Hash = Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="last_hash of the check before.")]


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("chains")

    @router.get("", openapi_extra=described(ChainList))
    async def list_chains(limit: Limit = 100, after: After = "") -> dict[str, Any]:
        """List the chains of receipts, one of each tenant that has or had some."""
        page = await gateway.money.chains.page(after=after, limit=limit)
        return list_answer(page.rows, page.has_more, chain_answer)

    @router.get("/{tenant}", openapi_extra=described(ChainCheckAnswer))
    async def check_chain(
        tenant: str,
        after_number: Number = None,
        after_hash: Hash = FIRST_PREVIOUS_HASH,
        limit: Limit = 1000,
    ) -> dict[str, Any]:
        """Check some of a tenant's receipts, from the first or after those checked before."""
        after = None if after_number is None else (after_number, after_hash)
        check = await gateway.money.chains.check(tenant, after=after, limit=limit)
        return as_json(tenant, check)

    return router
