"""/admin/balances: what tenants have used."""

from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query

from pagoda_gateway.admin.answers import list_answer
from pagoda_gateway.admin.money_answers import BalanceList, balance_answer
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.admin.route import After, Filter, Limit, admin_router

_EPOCH = date(1970, 1, 1)
Since = Annotated[date | None, Query(description="The first UTC day that counts.")]
Until = Annotated[date | None, Query(description="The first UTC day that does not.")]


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = admin_router("balances")
    statements = gateway.money.statements

    @router.get("", openapi_extra=described(BalanceList))
    async def list_balances(
        tenant: Filter = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = 100,
        after: After = "",
    ) -> dict[str, Any]:
        """List what tenants have used and what it cost, within some days or ever."""
        rows = await statements.balances(
            tenant=tenant,
            since_day=_day(since),
            until_day=_day(until),
            after=after,
            limit=limit + 1,
        )
        return list_answer(rows[:limit], len(rows) > limit, balance_answer)

    return router


def _day(day: date | None) -> int | None:
    return None if day is None else (day - _EPOCH).days
