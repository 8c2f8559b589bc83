"""What tenants have used and what it cost: sums by day, and receipts one after the other.

Sums come from `USAGE_DAYS`, which has them however old they are and however many receipts there
were. A day is UTC's, and a request belongs to the one on which it was opened.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.money.sealing import SUM_NAMES
from pagoda_gateway.accounts.money.tables import USAGE_DAYS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.errors import NotFoundError, shorten


class Statements:
    """Sums and receipts in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def balances(
        self,
        *,
        tenant: str | None = None,
        since_day: int | None = None,
        until_day: int | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[sa.RowMapping]:
        """Return each tenant's sums, in the order of tenants, of those that follow `after`.

        Args:
            tenant: only this one.
            since_day: the first day that counts, as days since 1970-01-01; None: the very first.
            until_day: the first day that does not count; None: all do.
            after: a tenant.
            limit: so many tenants at most.
        """
        days = USAGE_DAYS.c
        conditions = [days.tenant > comparable(after), *_within(since_day, until_day)]
        if tenant is not None:
            conditions.append(days.tenant == comparable(tenant))
        statement = (
            sa.select(days.tenant, *_sums())
            .where(*conditions)
            .group_by(days.tenant)
            .order_by(days.tenant)
            .limit(limit)
        )
        return await self._database.rows(statement)

    async def receipts(
        self,
        tenant: str,
        *,
        since_unix_seconds: float,
        until_unix_seconds: float,
        after: str = "",
        limit: int = 100,
    ) -> list[sa.RowMapping]:
        """Return rows of `USAGE` with a number, whose requests were opened in [since, until).

        They are in the order in which their requests were opened; `after` is the last one's
        request id of what was returned before, or the id of its answer.

        Raises:
            NotFoundError: there is no such one, as it was cut off meanwhile. What was opened before
                it and ended later may still be there, so nobody knows where to go on.
        """
        columns = USAGE.c

        def read(connection: sa.Connection) -> list[sa.RowMapping]:
            first = since_unix_seconds
            place: Sequence[sa.ColumnElement[bool]] = ()
            if after:
                is_last = sa.or_(
                    columns.request_id == comparable(after), columns.object_id == comparable(after)
                )
                last = connection.execute(
                    sa.select(columns.opened_unix_seconds, columns.request_id).where(
                        columns.tenant == comparable(tenant), is_last
                    )
                ).first()
                if last is None:
                    raise NotFoundError(
                        f"there is no receipt of {shorten(after)} to go on from, or no longer: "
                        "begin again",
                        param="after",
                    )
                first = max(first, last.opened_unix_seconds)
                place = (
                    sa.tuple_(columns.opened_unix_seconds, columns.request_id)
                    > sa.tuple_(sa.literal(last.opened_unix_seconds), sa.literal(last.request_id)),
                )
            statement = (
                sa.select(USAGE)
                .where(
                    columns.tenant == comparable(tenant),
                    columns.opened_unix_seconds >= first,
                    columns.opened_unix_seconds < until_unix_seconds,
                    columns.receipt_number.is_not(None),
                    *place,
                )
                .order_by(columns.opened_unix_seconds, columns.request_id)
                .limit(limit)
            )
            return list(connection.execute(statement).mappings())

        return await self._database.call(read)


def _within(since_day: int | None, until_day: int | None) -> list[sa.ColumnElement[bool]]:
    conditions = []
    if since_day is not None:
        conditions.append(USAGE_DAYS.c.day >= since_day)
    if until_day is not None:
        conditions.append(USAGE_DAYS.c.day < until_day)
    return conditions


def _sums() -> list[sa.ColumnElement[Any]]:
    # PostgreSQL's sums of BigInteger are Numeric.
    return [
        sa.cast(sa.func.sum(USAGE_DAYS.c[name]), sa.BigInteger).label(name) for name in SUM_NAMES
    ]
