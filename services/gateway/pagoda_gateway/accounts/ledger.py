"""The ledger: tenants, keys (hashed), usage, receipts.

All database work runs in one thread of its own, so the event loop never waits for it. Usage comes
from the usage log and is applied idempotently: replaying every record changes nothing.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url

from pagoda.rpc.v1.usage_pb2 import UsageRecord
from pagoda_gateway.accounts.keys import ApiKey, hash_key
from pagoda_gateway.accounts.tables import API_KEYS, METADATA, REQUEST_NAMES, TENANTS, USAGE
from pagoda_gateway.accounts.usage_rows import close_values, open_values

CALL_SECONDS = 20.0
T = TypeVar("T")


class Ledger:
    """The database, with an asynchronous face; made by `open_ledger`."""

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._applied = asyncio.Event()  # replaced whenever records were applied
        self._upserts: dict[str, Any] = {}  # statement by its column that is filled once

    async def create_key(
        self, tenant: str, label: str, secret: str | None = None
    ) -> tuple[str, str]:
        """Store a key for `tenant` (made if unknown); return (key id, secret). Repeatable."""
        secret = secret or f"sk-pagoda-{secrets.token_urlsafe(32)}"
        key_id = await self._call(lambda: self._create_key(tenant, label, hash_key(secret)))
        return key_id, secret

    async def revoke_key(self, api_key_id: str) -> bool:
        """Make a key useless; return whether it was there and valid."""
        statement = (
            sa.update(API_KEYS)
            .where(API_KEYS.c.api_key_id == api_key_id, API_KEYS.c.revoked_unix_seconds.is_(None))
            .values(revoked_unix_seconds=self._clock())
        )

        def revoke() -> bool:
            with self._engine.begin() as connection:
                return connection.execute(statement).rowcount > 0

        return await self._call(revoke)

    async def find_key(self, key_hash: str) -> ApiKey | None:
        """Return the valid key with this hash."""
        statement = sa.select(API_KEYS.c.api_key_id, API_KEYS.c.tenant).where(
            API_KEYS.c.key_hash == key_hash, API_KEYS.c.revoked_unix_seconds.is_(None)
        )
        row = await self._call(lambda: self._first(statement))
        return None if row is None else ApiKey(row.api_key_id, row.tenant)

    async def apply(self, records: Sequence[UsageRecord]) -> None:
        """Write usage records; each counts once, however often and in whatever order they come."""
        await self._call(lambda: self._apply(records))
        applied, self._applied = self._applied, asyncio.Event()
        applied.set()

    async def wait_applied(self, timeout_seconds: float) -> None:
        """Return when further records were applied here, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._applied.wait()

    async def name_request(self, tenant: str, client_request_id: str, request_id: str) -> None:
        """Remember what the client calls a request."""
        values = {
            "request_id": request_id, "tenant": tenant, "client_request_id": client_request_id,
        }  # fmt: skip

        def write() -> None:
            with self._engine.begin() as connection:
                connection.execute(
                    self._insert(REQUEST_NAMES).values(values).on_conflict_do_nothing()
                )

        await self._call(write)

    async def usage_of(self, tenant: str, name: str) -> sa.RowMapping | None:
        """Return the tenant's last request called `name`: by our id, OpenAI's or the client's."""
        named = sa.select(REQUEST_NAMES.c.request_id).where(
            REQUEST_NAMES.c.tenant == tenant, REQUEST_NAMES.c.client_request_id == name
        )
        statement = (
            sa.select(USAGE)
            .where(USAGE.c.tenant == tenant)
            .where(
                sa.or_(
                    USAGE.c.request_id == name,
                    USAGE.c.object_id == name,
                    USAGE.c.request_id.in_(named),
                )
            )
            .order_by(USAGE.c.opened_unix_seconds.desc())
            .limit(1)
        )
        row = await self._call(lambda: self._first(statement))
        return None if row is None else row._mapping

    async def totals(self, tenant: str) -> tuple[int, int]:
        """Return (prompt tokens, output tokens) billed to a tenant."""
        statement = sa.select(
            sa.func.coalesce(sa.func.sum(USAGE.c.prompt_tokens), 0).label("prompt"),
            sa.func.coalesce(sa.func.sum(USAGE.c.output_tokens), 0).label("output"),
        ).where(USAGE.c.tenant == tenant)
        row = await self._call(lambda: self._first(statement))
        return (int(row.prompt), int(row.output)) if row is not None else (0, 0)

    async def close(self) -> None:
        """Finish what runs and close the database."""
        await self._call(self._engine.dispose)
        self._thread.shutdown(wait=True)

    async def _call(self, work: Callable[[], T]) -> T:
        async with asyncio.timeout(CALL_SECONDS):
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _first(self, statement: sa.Select[Any]) -> sa.Row[Any] | None:
        with self._engine.connect() as connection:
            return connection.execute(statement).first()

    def _insert(self, table: sa.Table) -> Any:
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        return dialect.insert(table)

    def _create_key(self, tenant: str, label: str, key_hash: str) -> str:
        now = self._clock()
        with self._engine.begin() as connection:
            connection.execute(
                self._insert(TENANTS)
                .values(tenant=tenant, created_unix_seconds=now)
                .on_conflict_do_nothing()
            )
            connection.execute(
                self._insert(API_KEYS)
                .values(
                    api_key_id=f"key-{secrets.token_hex(8)}",
                    tenant=tenant,
                    key_hash=key_hash,
                    label=label,
                    created_unix_seconds=now,
                )
                .on_conflict_do_nothing(index_elements=["key_hash"])
            )
            found = connection.execute(
                sa.select(API_KEYS.c.api_key_id).where(API_KEYS.c.key_hash == key_hash)
            ).scalar_one()
        return str(found)

    def _apply(self, records: Sequence[UsageRecord]) -> None:
        opened = [open_values(r.open) for r in records if r.HasField("open")]
        closed = [close_values(r.close) for r in records if r.HasField("close")]
        with self._engine.begin() as connection:
            for values, once in ((opened, USAGE.c.tenant), (closed, USAGE.c.closed_unix_seconds)):
                if values:
                    connection.execute(self._upsert(tuple(values[0]), once), values)

    def _upsert(self, names: tuple[str, ...], once: sa.Column[Any]) -> Any:
        """Return the statement that fills one half of a row, unless `once` is filled."""
        if once.name not in self._upserts:
            insert = self._insert(USAGE)
            changes = {name: insert.excluded[name] for name in names if name != "request_id"}
            self._upserts[once.name] = insert.on_conflict_do_update(
                index_elements=["request_id"], set_=changes, where=once.is_(None)
            )
        return self._upserts[once.name]


@contextlib.asynccontextmanager
async def open_ledger(url: str) -> AsyncIterator[Ledger]:
    """Yield the ledger at a SQLAlchemy URL; its tables are made if they are missing."""
    address = make_url(url)
    is_sqlite = address.get_backend_name() == "sqlite"
    if is_sqlite and address.database and address.database != ":memory:":
        await asyncio.to_thread(
            Path(address.database).parent.mkdir, parents=True, exist_ok=True, mode=0o700
        )
    options: dict[str, Any] = {"poolclass": sa.StaticPool} if is_sqlite else {}
    if is_sqlite:
        options["connect_args"] = {"check_same_thread": False, "timeout": 10}
    engine = sa.create_engine(address, **options)
    if is_sqlite:
        sa.event.listen(engine, "connect", _configure_sqlite)
    ledger = Ledger(engine)
    try:
        await ledger._call(lambda: METADATA.create_all(engine))
        yield ledger
    finally:
        await ledger.close()


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # an acknowledged record survives a power cut
    connection.execute("PRAGMA foreign_keys=ON")
