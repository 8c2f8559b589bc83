"""Forgets what is old: receipts, and what clients called requests. Sums by day stay.

Receipts go from the beginning of their tenant's chain, which remembers the last that went: so what
is left can still be checked. All is done in bites, between which others use the database.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from ulid_transform import ulid_at_time

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.money.chains import Chains
from pagoda_gateway.accounts.money.sealing import DAY_SECONDS
from pagoda_gateway.accounts.money.tables import RECEIPT_CHAINS
from pagoda_gateway.accounts.tables import REQUEST_NAMES, USAGE
from pagoda_gateway.accounts.usage.tables import SEQUENCE_USAGE

logger = logging.getLogger(__name__)

PASS_SECONDS = 600.0
BITE = 500
_TENANTS = 1000


class Retention:
    """Keeps usage and names for so many days; 0: for ever."""

    def __init__(
        self,
        database: Database,
        *,
        usage_days: int,
        name_days: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._database = database
        self._chains = Chains(database)
        self._usage_days = usage_days
        self._name_days = name_days
        self._clock = clock or database.now

    async def run(self) -> None:
        """Forget what is old now and then, until cancelled."""
        while True:
            try:
                await self.forget_old()
            except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
                logger.warning("old usage is forgotten later: %r", error)
            await asyncio.sleep(PASS_SECONDS)

    async def forget_old(self) -> int:
        """Forget all that is old; return how many receipts and names that were."""
        num_forgotten, now = 0, self._clock()
        if self._name_days:
            num_forgotten += await self._forget_names(now - self._name_days * DAY_SECONDS)
        if self._usage_days:
            num_forgotten += await self._forget_usage(now - self._usage_days * DAY_SECONDS)
        if num_forgotten:
            logger.info("%d old receipts and names of requests are forgotten", num_forgotten)
        return num_forgotten

    async def _forget_names(self, before: float) -> int:
        is_old = REQUEST_NAMES.c.request_id < _first_id(before)
        return await self._bites(lambda connection: _delete(connection, REQUEST_NAMES, is_old))

    async def _forget_usage(self, before: float) -> int:
        num_forgotten, after = 0, ""
        while chains := (await self._chains.page(after=after, limit=_TENANTS)).rows:
            for after in (chain["tenant"] for chain in chains):
                num_forgotten += await self._bites(partial(_cut, tenant=after, before=before))
        # What never became a receipt: requests without an end, lines of batches that failed, and
        # ends of requests whose beginning is not here.
        never = USAGE.c.receipt_number.is_(None), USAGE.c.opened_unix_seconds < before
        unbegun = USAGE.c.tenant.is_(None), USAGE.c.closed_unix_seconds < before
        for old in (never, unbegun):
            num_forgotten += await self._bites(
                lambda connection, old=old: _delete(connection, USAGE, *old)  # type: ignore[misc]
            )
        # And what workers did for requests whose account was never opened: nobody got anything.
        has_account = sa.exists().where(USAGE.c.request_id == SEQUENCE_USAGE.c.request_id)
        is_old = SEQUENCE_USAGE.c.request_id < _first_id(before)
        await self._bites(
            lambda connection: _delete(connection, SEQUENCE_USAGE, is_old, ~has_account)
        )
        return num_forgotten

    async def _bites(self, bite: Callable[[sa.Connection], int]) -> int:
        total = 0
        while True:
            taken = await self._database.call(bite)
            total += taken
            if taken < BITE:
                return total


def _first_id(unix_seconds: float) -> str:
    """Return what ids of requests since then are not less than: the time is in them."""
    return ulid_at_time(unix_seconds)[:10] if unix_seconds > 0 else ""


def _delete(connection: sa.Connection, table: sa.Table, *old: sa.ColumnElement[bool]) -> int:
    some = sa.select(table.c.request_id).where(*old).limit(BITE)
    if table is USAGE:
        _delete_sequences(connection, some)
    return connection.execute(sa.delete(table).where(table.c.request_id.in_(some))).rowcount


def _delete_sequences(connection: sa.Connection, request_ids: sa.Select[Any]) -> None:
    """Delete what workers said of requests."""
    is_theirs = SEQUENCE_USAGE.c.request_id.in_(request_ids)
    connection.execute(sa.delete(SEQUENCE_USAGE).where(is_theirs))


def _cut(connection: sa.Connection, tenant: str, before: float) -> int:
    """Cut the oldest receipts off a tenant's chain, up to the first that is not old."""
    is_theirs = RECEIPT_CHAINS.c.tenant == tenant
    chain = connection.execute(
        sa.select(RECEIPT_CHAINS).where(is_theirs).with_for_update()
    ).mappings().one()  # fmt: skip
    columns = USAGE.c
    rows = connection.execute(
        sa.select(columns.receipt_number, columns.receipt_hash, columns.closed_unix_seconds)
        .where(columns.tenant == tenant, columns.receipt_number > chain["cut_number"])
        .order_by(columns.receipt_number)
        .limit(BITE)
    ).all()
    old = []
    for row in rows:
        if row.closed_unix_seconds >= before:
            break
        old.append(row)
    if not old:
        return 0
    is_old = sa.and_(
        columns.tenant == tenant,
        columns.receipt_number > chain["cut_number"],
        columns.receipt_number <= old[-1].receipt_number,
    )
    _delete_sequences(connection, sa.select(columns.request_id).where(is_old))
    connection.execute(sa.delete(USAGE).where(is_old))
    connection.execute(
        sa.update(RECEIPT_CHAINS)
        .where(is_theirs)
        .values(cut_number=old[-1].receipt_number, cut_hash=old[-1].receipt_hash)
    )
    return len(old)
