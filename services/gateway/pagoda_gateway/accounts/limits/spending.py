"""What was spent, from the ledger: the seeds of budgets, and what lost requests came to.

Knows usage and prices; knows no Redis.
"""

import datetime
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.scope_rows import (
    day_is_of_scope,
    moves_of,
    organisation_of_row,
    row_is_of_scope,
    was_member_on,
)
from pagoda_gateway.accounts.money.price import BATCH_TIER
from pagoda_gateway.accounts.money.price_book import PriceBook, is_billed
from pagoda_gateway.accounts.money.sealing import DAY_SECONDS
from pagoda_gateway.accounts.money.tables import USAGE_DAYS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.tenancy.tables import TENANT_MOVES, TENANTS
from pagoda_gateway.accounts.usage_rows import FINISHED

# Requests opened within it may be held by a gateway, or were of late: they are looked at one by
# one. Longer than a request may run and a gateway remembers it.
RECENT_SECONDS = 1800.0


# What is read of the ledger: sums of days, which have all receipts, forgotten ones too; rows that
# have no receipt yet; and receipts of late, to take those that are held elsewhere out of the sums.
_SUMS, _UNSEALED, _RECENT = "sums", "unsealed", "recent"
_COLUMNS = (
    USAGE.c.request_id, USAGE.c.model, USAGE.c.service_tier, USAGE.c.outcome,
    USAGE.c.opened_unix_seconds, USAGE.c.closed_unix_seconds, USAGE.c.opened_prompt_tokens,
    USAGE.c.max_output_tokens, USAGE.c.prompt_tokens, USAGE.c.output_tokens,
    USAGE.c.cost_micros,
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
        month_start = day - (moment.day - 1)
        recent_start = at - RECENT_SECONDS if without else None
        rows = await self._database.rows(
            _statement(scope, key, month_start, day, recent_start=recent_start)
        )
        # Asked behind it: what nobody has moved in by then nobody had moved in before.
        if scope.kind == "organisation" and await self._database.rows(moves_of(scope, month_start)):
            rows = await self._database.rows(
                _statement(scope, key, month_start, day, recent_start=recent_start, has_moves=True)
            )
        day_spent = month_spent = 0
        unfinished = []
        for row in rows:
            is_held = row["request_id"] in without
            if row["kind"] == _SUMS:
                cost = int(row["cost_micros"])
            elif row["kind"] == _RECENT:
                cost = -int(row["cost_micros"]) if is_held else 0
            elif is_held:
                continue
            elif row["closed_unix_seconds"] is None:
                opened_ms = int(1000 * row["opened_unix_seconds"])
                unfinished.append((row["request_id"], self.cost_of(row), opened_ms))
                continue
            else:
                cost = self.cost_of(row)
            month_spent += cost
            day_spent += cost if row["opened_unix_seconds"] >= day * DAY_SECONDS else 0
        month = (moment.year - 1970) * 12 + moment.month - 1
        return Spent(day, day_spent, month, month_spent, unfinished)

    async def organisations_of(self, key: ApiKey, *, at: float) -> list[str]:
        """Return whose counters may have holds of a key's tenant that count this month.

        Raises:
            TimeoutError, SQLAlchemyError: the database does not answer.
        """
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
        first_day = int(at // DAY_SECONDS) - moment.day  # one more: news of a move may be late
        statement = sa.union(
            sa.select(TENANTS.c.organisation).where(TENANTS.c.tenant == key.tenant),
            sa.select(TENANT_MOVES.c.organisation).where(
                TENANT_MOVES.c.tenant == key.tenant, TENANT_MOVES.c.day >= first_day
            ),
        )
        rows = await self._database.rows(statement)
        return sorted({key.organisation, *(row["organisation"] for row in rows)})

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


def _statement(
    scope: LimitScope,
    key: ApiKey,
    month_start: int,
    day: int,
    *,
    recent_start: float | None,
    has_moves: bool = False,
) -> sa.CompoundSelect[Any]:
    """Return what a scope's spending in a month is made of: see `_SUMS` and its siblings.

    One statement, so that all of it is of one moment: a row that is sealed meanwhile is either
    among those that are not, or in the sums.

    Args:
        scope: of the key.
        key: whose.
        month_start: the month's first day.
        day: today.
        recent_start: Unix seconds from which on sealed rows are wanted too; None: none is.
        has_moves: tenants have come to this organisation or left it in this month.
    """
    usage, first = USAGE.c, month_start * DAY_SECONDS
    days = USAGE_DAYS.c
    sums = _sums(days.day, sa.func.sum(days.cost_micros), day).where(
        day_is_of_scope(scope, key, month_start, has_moves=has_moves), days.day >= month_start
    )
    unsealed = sa.select(sa.literal(_UNSEALED), *_COLUMNS).where(
        row_is_of_scope(scope, key, month_start, has_moves=has_moves),
        usage.receipt_number.is_(None),
        usage.opened_unix_seconds >= first,
        # Not lines of batches that have failed: there may be many. See `is_billed`.
        sa.or_(
            usage.closed_unix_seconds.is_(None),
            usage.outcome == FINISHED,
            sa.func.coalesce(usage.service_tier, "") != BATCH_TIER,
        ),
    )
    parts = [sums, unsealed]
    if has_moves:
        parts.append(_used_elsewhere(scope, month_start, day))
    if recent_start is not None:
        recent = sa.select(sa.literal(_RECENT), *_COLUMNS).where(
            row_is_of_scope(scope, key, month_start, has_moves=has_moves),
            usage.receipt_number.is_not(None),
            usage.opened_unix_seconds >= max(first, recent_start),
        )
        parts.append(recent)
    return sa.union_all(*parts)


def _sums(of_day: sa.ColumnElement[int], cost: sa.ColumnElement[Any], today: int) -> sa.Select[Any]:
    """Return two rows of `_SUMS` at most: what was spent on days before, and today."""
    is_today = sa.case((of_day >= today, 1), else_=0)
    return sa.select(
        sa.literal(_SUMS).label("kind"),
        *(
            sa.cast(cost, sa.BigInteger).label("cost_micros")
            if column.name == "cost_micros"
            else sa.cast(is_today * today * DAY_SECONDS, sa.Double).label(column.name)
            if column.name == "opened_unix_seconds"
            else sa.cast(sa.null(), column.type).label(column.name)
            for column in _COLUMNS
        ),
    ).group_by(is_today)


def _used_elsewhere(scope: LimitScope, month_start: int, today: int) -> sa.Select[Any]:
    """Return what has to be taken off an organisation's sums: days know no hour.

    On a day on which a tenant came or went it used some for another organisation. Of what
    retention has cut off nobody knows for which: it counts for both.
    """
    moves = (
        sa.select(TENANT_MOVES.c.tenant, TENANT_MOVES.c.day)
        .where(TENANT_MOVES.c.day >= month_start)
        .distinct()
        .subquery("days_of_moves")
    )
    start = sa.cast(moves.c.day, sa.Double) * DAY_SECONDS
    usage = USAGE.c
    return (
        _sums(moves.c.day, -sa.func.sum(usage.cost_micros), today)
        .join_from(
            moves,
            USAGE,
            sa.and_(
                usage.tenant == moves.c.tenant,
                usage.opened_unix_seconds >= start,
                usage.opened_unix_seconds < start + DAY_SECONDS,
            ),
        )
        .where(
            usage.receipt_number.is_not(None),
            was_member_on(scope, moves.c.tenant, moves.c.day),
            organisation_of_row() != scope.name,
        )
    )
