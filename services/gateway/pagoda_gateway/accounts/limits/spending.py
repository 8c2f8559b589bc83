"""What was spent, from the ledger: the seeds of budgets, and what lost requests came to.

Knows usage and prices; knows no Redis.
"""

import datetime
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.money.price_book import PriceBook, is_billed
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.tenancy.tables import TENANTS
from pagoda_gateway.accounts.usage_rows import FINISHED

DAY_SECONDS = 86_400
# Requests opened within it may be held by a gateway, or were of late: they are looked at one by
# one. Longer than a request may run and a gateway remembers it.
RECENT_SECONDS = 1800.0


_COST = USAGE.c.cost_micros  # null: not priced yet
_COLUMNS = (
    USAGE.c.request_id, USAGE.c.model, USAGE.c.service_tier, USAGE.c.outcome,
    USAGE.c.opened_unix_seconds, USAGE.c.closed_unix_seconds, USAGE.c.opened_prompt_tokens,
    USAGE.c.max_output_tokens, USAGE.c.prompt_tokens, USAGE.c.output_tokens,
    _COST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spent:
    """What a scope spent, in millionths; the requests that are held elsewhere are left out.

    Attributes:
        day: days since 1970, UTC; `day_spent` is what was spent in it.
        month: months since 1970, UTC; `month_spent` is what was spent in it.
        open: (request id, the most that it can cost, ms since 1970) of requests without an end.
    """

    day: int
    day_spent: int
    month: int
    month_spent: int
    open: list[tuple[str, int, int]]


class Spending:
    """Reads the ledger."""

    def __init__(self, database: Database, prices: PriceBook) -> None:
        self._database = database
        self._prices = prices

    async def of(
        self, scope: LimitScope, key: ApiKey, *, at: float, without: Collection[str]
    ) -> Spent:
        """Return what a scope of a key has spent until Unix time `at`, but for some requests.

        Raises:
            TimeoutError, SQLAlchemyError: the database does not answer.
        """
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
        day = int(at // DAY_SECONDS)
        day_start = float(day * DAY_SECONDS)
        month_start = day_start - (moment.day - 1) * DAY_SECONDS
        recent_start = max(month_start, at - RECENT_SECONDS)
        of_scope = _condition(scope, key)

        def read(connection: sa.Connection) -> tuple[int, int, list[sa.RowMapping]]:
            day_spent = month_spent = 0
            if recent_start > month_start:
                day_spent, month_spent = self._sums(
                    connection, of_scope, month_start, day_start, recent_start
                )
            recent = sa.select(*_COLUMNS).where(
                of_scope, USAGE.c.opened_unix_seconds >= recent_start
            )
            still_open = sa.select(*_COLUMNS).where(
                of_scope,
                USAGE.c.opened_unix_seconds >= month_start,
                USAGE.c.opened_unix_seconds < recent_start,
                USAGE.c.closed_unix_seconds.is_(None),
            )
            rows = [*connection.execute(recent).mappings()]
            rows += connection.execute(still_open).mappings()
            return day_spent, month_spent, rows

        day_spent, month_spent, rows = await self._database.call(read)
        unfinished = []
        for row in rows:
            if row["request_id"] in without:
                continue
            opened = row["opened_unix_seconds"]
            cost = self.cost_of(row)
            if row["closed_unix_seconds"] is None:
                unfinished.append((row["request_id"], cost, int(1000 * opened)))
                continue
            month_spent += cost
            day_spent += cost if opened >= day_start else 0
        month = (moment.year - 1970) * 12 + moment.month - 1
        return Spent(day, day_spent, month, month_spent, unfinished)

    async def requests(self, request_ids: Iterable[str]) -> dict[str, sa.RowMapping]:
        """Return the rows of a few requests, of those that the ledger knows."""
        statement = sa.select(*_COLUMNS).where(USAGE.c.request_id.in_(list(request_ids)))
        return {row["request_id"]: row for row in await self._database.rows(statement)}

    def cost_of(self, row: sa.RowMapping) -> int:
        """Return what a row costs; while that is not known, the most that it can."""
        if row["cost_micros"] is not None:
            return int(row["cost_micros"])
        tier = row["service_tier"] or ""
        is_open = row["closed_unix_seconds"] is None
        if not is_open and not is_billed(tier, row["outcome"]):
            return 0
        return self._prices.most_micros(
            row["model"] or "",
            num_prompt_tokens=row["opened_prompt_tokens" if is_open else "prompt_tokens"] or 0,
            num_output_tokens=row["max_output_tokens" if is_open else "output_tokens"] or 0,
            service_tier=tier,
            at=row["opened_unix_seconds"],
        )

    def _sums(
        self,
        connection: sa.Connection,
        of_scope: sa.ColumnElement[bool],
        month_start: float,
        day_start: float,
        end: float,
    ) -> tuple[int, int]:
        """Return what requests that were opened from the month's start to `end` cost: (day, month).

        Those of the day are those from `day_start` on.
        """
        opened = USAGE.c.opened_unix_seconds
        is_today = sa.case((opened >= day_start, 1), else_=0)
        # What is not priced yet is summed up by what its price depends on.
        statement = (
            sa.select(
                is_today.label("is_today"),
                sa.func.sum(_COST).label("cost"),
                _COST.is_(None).label("is_unpriced"),
                USAGE.c.model,
                USAGE.c.service_tier,
                sa.func.count().label("num_rows"),
                sa.func.sum(USAGE.c.prompt_tokens).label("prompt_tokens"),
                sa.func.sum(USAGE.c.output_tokens).label("output_tokens"),
                sa.func.max(opened).label("opened"),
            )
            .where(
                of_scope,
                opened >= month_start,
                opened < end,
                USAGE.c.closed_unix_seconds.is_not(None),
                sa.or_(
                    _COST.is_not(None),
                    USAGE.c.outcome == FINISHED,
                    sa.func.coalesce(USAGE.c.service_tier, "") != "batch",
                ),
            )
            .group_by("is_today", "is_unpriced", USAGE.c.model, USAGE.c.service_tier)
        )
        day_spent = month_spent = 0
        for row in connection.execute(statement).mappings():
            cost = int(row["cost"] or 0)
            if row["is_unpriced"]:
                cost = self._prices.most_micros(
                    row["model"] or "",
                    num_prompt_tokens=int(row["prompt_tokens"] or 0),
                    num_output_tokens=int(row["output_tokens"] or 0),
                    service_tier=row["service_tier"] or "",
                    at=row["opened"],
                )
                cost += int(row["num_rows"]) if cost else 0  # each is rounded by itself
            month_spent += cost
            day_spent += cost if row["is_today"] else 0
        return day_spent, month_spent


def _condition(scope: LimitScope, key: ApiKey) -> sa.ColumnElement[bool]:
    if scope.kind == "organisation":
        tenants = sa.select(TENANTS.c.tenant).where(TENANTS.c.organisation == scope.name)
        return USAGE.c.tenant.in_(tenants)
    if scope.kind == "tenant":
        return USAGE.c.tenant == scope.name
    return sa.and_(USAGE.c.tenant == key.tenant, USAGE.c.api_key_id == scope.name)
