"""The ledger: what requests used, and what clients call them.

Usage comes from the usage log and is applied idempotently: replaying every record changes nothing.
A row that is whole is sealed at once: see `money.sealing`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Literal

import sqlalchemy as sa

from pagoda.rpc.v1.usage_pb2 import UsageRecord
from pagoda_gateway.accounts.database import Database, comparable, open_database
from pagoda_gateway.accounts.fitted import content_told_apart
from pagoda_gateway.accounts.money.sealing import Sealer
from pagoda_gateway.accounts.tables import REQUEST_NAMES, USAGE
from pagoda_gateway.accounts.usage_rows import (
    FINISHED,
    LOST,
    RECONCILED,
    close_values,
    name_values,
    open_values,
)

_Half = tuple[Literal["open", "close"], list[dict[str, Any]]]
_Step = Callable[[sa.Connection], None]


class Ledger:
    """Usage in the database."""

    def __init__(self, database: Database, clock: Callable[[], float] | None = None) -> None:
        """Write to `database`; `clock` is Unix seconds."""
        self.database = database
        self._clock = clock or database.now
        self._applied = asyncio.Event()  # replaced whenever records were applied
        self._upserts: dict[str, Any] = {}  # statement of each half
        self._sealer = Sealer(database)

    async def apply(self, records: Sequence[UsageRecord]) -> None:
        """Write usage records; each counts once, however often and in whatever order they come.

        Raises:
            ContentError: a record says what the database does not take.
            Exception: what the database raises, for reasons of its own.
        """
        # PostgreSQL locks rows. Replicas that lock them in one order, and one half's at a time, do
        # not wait for each other in a circle. SQLite locks all, and syncs for each transaction.
        halves: list[_Half] = [
            ("open", [open_values(r.open) for r in records if r.HasField("open")]),
            ("close", [close_values(r.close) for r in records if r.HasField("close")]),
        ]
        request_ids = sorted({row["request_id"] for _, rows in halves for row in rows})
        steps: list[_Step] = [partial(self._write, half) for half in halves if half[1]]
        if names := [name_values(r.open) for r in records if r.open.client_request_id]:
            steps.append(partial(self._name, sorted(names, key=itemgetter("request_id"))))
        steps.append(partial(self._sealer.seal, request_ids=request_ids, now=self._clock()))
        transactions = [[step] for step in steps] if self.database.is_postgresql else [steps]
        for transaction in transactions:
            await self.database.call(partial(_run, transaction))
        self.note_applied()

    async def check_writable(self) -> None:
        """Write nothing, as `apply` writes.

        Raises:
            OSError, SQLAlchemyError: records cannot be written now, or not by this user.
        """
        nobody = sa.select(USAGE.c.request_id).where(sa.false())
        statements = (
            sa.insert(USAGE).from_select(["request_id"], nobody, include_defaults=False),
            sa.update(USAGE).values(tenant=USAGE.c.tenant).where(sa.false()),
        )

        def write(connection: sa.Connection) -> None:
            for statement in statements:
                connection.execute(statement)

        await self.database.call(write)

    async def seal_left(self) -> None:
        """Seal what nobody sealed when it was applied: see `Sealer.seal_left`."""
        while await self.database.call(partial(self._sealer.seal_left, now=self._clock())):
            pass

    def note_applied(self) -> None:
        """Wake those who wait: records were applied, here or elsewhere."""
        applied, self._applied = self._applied, asyncio.Event()
        applied.set()

    async def wait_applied(self, timeout_seconds: float) -> None:
        """Return when further records were applied, as far as we hear, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._applied.wait()

    async def object_row(self, tenant: str, object_id: str) -> sa.RowMapping | None:
        """Return the row of the tenant's request whose answer has this id; None: there is none."""
        is_it = sa.and_(USAGE.c.object_id == comparable(object_id), USAGE.c.tenant == tenant)
        return await self.database.first(sa.select(USAGE).where(is_it))

    async def totals(self, tenant: str) -> tuple[int, int]:
        """Return (prompt tokens, output tokens) billed to a tenant."""
        statement = sa.select(
            sa.func.coalesce(sa.func.sum(USAGE.c.prompt_tokens), 0).label("prompt"),
            sa.func.coalesce(sa.func.sum(USAGE.c.output_tokens), 0).label("output"),
        ).where(USAGE.c.tenant == tenant)
        row = await self.database.first(statement)
        return (int(row["prompt"]), int(row["output"])) if row is not None else (0, 0)

    def _write(self, written: _Half, connection: sa.Connection) -> None:
        half, rows = written
        ordered = sorted(rows, key=lambda row: str(row["request_id"]))
        with content_told_apart():
            connection.execute(self._upsert(half, tuple(ordered[0])), ordered)

    def _name(self, names: list[dict[str, Any]], connection: sa.Connection) -> None:
        with content_told_apart():
            connection.execute(self.database.insert(REQUEST_NAMES).on_conflict_do_nothing(), names)

    def _upsert(self, half: Literal["open", "close"], names: tuple[str, ...]) -> Any:
        """Return the statement that fills one half of a row, unless it is filled."""
        if half in self._upserts:
            return self._upserts[half]
        insert = self.database.insert(USAGE)
        new = insert.excluded
        is_empty: sa.ColumnElement[bool] = USAGE.c.tenant.is_(None)
        if half == "close":
            is_made_up = sa.or_(USAGE.c.outcome == RECONCILED, USAGE.c.outcome == LOST)
            is_empty = sa.or_(
                USAGE.c.closed_unix_seconds.is_(None),
                sa.and_(
                    USAGE.c.receipt_number.is_(None),  # what has a receipt stays as it is
                    sa.or_(
                        # A line of a batch that failed may finish later under its request id.
                        sa.and_(USAGE.c.outcome != FINISHED, new.outcome == FINISHED),
                        # The gateway's own word, late, in place of what workers said, or nobody.
                        sa.and_(is_made_up, new.outcome != RECONCILED, new.outcome != LOST),
                    ),
                ),
            )
        self._upserts[half] = insert.on_conflict_do_update(
            index_elements=["request_id"],
            set_={name: new[name] for name in names if name != "request_id"},
            where=is_empty,
        )
        return self._upserts[half]


def _run(steps: Sequence[_Step], connection: sa.Connection) -> None:
    for step in steps:
        step(connection)


@contextlib.asynccontextmanager
async def open_ledger(url: str) -> AsyncIterator[Ledger]:
    """Yield the ledger in the database at a SQLAlchemy URL."""
    async with open_database(url) as database:
        yield Ledger(database)
