"""The ledger: tenants, keys (hashed), usage, receipts.

Usage comes from the usage log and is applied idempotently: replaying every record changes nothing.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.usage_pb2 import UsageRecord
from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.accounts.keys import ApiKey, hash_key
from pagoda_gateway.accounts.tables import API_KEYS, METADATA, REQUEST_NAMES, TENANTS, USAGE
from pagoda_gateway.accounts.usage_rows import close_values, open_values

FINISHED = "finished"


class Ledger:
    """Accounts in the database; made by `open_ledger`."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.database = database
        self._clock = clock
        self._applied = asyncio.Event()  # replaced whenever records were applied

    async def create_key(
        self, tenant: str, label: str, secret: str | None = None
    ) -> tuple[str, str]:
        """Store a key for `tenant` (made if unknown); return (key id, secret). Repeatable."""
        secret = secret or f"sk-pagoda-{secrets.token_urlsafe(32)}"
        key_hash = hash_key(secret)
        key_id = await self.database.call(
            lambda connection: self._create_key(connection, tenant, label, key_hash)
        )
        return key_id, secret

    async def revoke_key(self, api_key_id: str) -> bool:
        """Make a key useless; return whether it was there and valid."""
        statement = (
            sa.update(API_KEYS)
            .where(API_KEYS.c.api_key_id == api_key_id, API_KEYS.c.revoked_unix_seconds.is_(None))
            .values(revoked_unix_seconds=self._clock())
        )
        return await self.database.call(
            lambda connection: connection.execute(statement).rowcount > 0
        )

    async def find_key(self, key_hash: str) -> ApiKey | None:
        """Return the valid key with this hash."""
        statement = sa.select(API_KEYS.c.api_key_id, API_KEYS.c.tenant).where(
            API_KEYS.c.key_hash == key_hash, API_KEYS.c.revoked_unix_seconds.is_(None)
        )
        row = await self.database.first(statement)
        return None if row is None else ApiKey(row["api_key_id"], row["tenant"])

    async def apply(self, records: Sequence[UsageRecord]) -> None:
        """Write usage records; each counts once, however often and in whatever order they come."""
        await self.database.call(lambda connection: self._apply(connection, records))
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
        statement = self.database.insert(REQUEST_NAMES).values(values).on_conflict_do_nothing()

        await self.database.call(lambda connection: connection.execute(statement))

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
        return await self.database.first(statement)

    async def totals(self, tenant: str) -> tuple[int, int]:
        """Return (prompt tokens, output tokens) billed to a tenant."""
        statement = sa.select(
            sa.func.coalesce(sa.func.sum(USAGE.c.prompt_tokens), 0).label("prompt"),
            sa.func.coalesce(sa.func.sum(USAGE.c.output_tokens), 0).label("output"),
        ).where(USAGE.c.tenant == tenant)
        row = await self.database.first(statement)
        return (int(row["prompt"]), int(row["output"])) if row is not None else (0, 0)

    def _create_key(self, connection: sa.Connection, tenant: str, label: str, key_hash: str) -> str:
        now, insert = self._clock(), self.database.insert
        connection.execute(
            insert(TENANTS).values(tenant=tenant, created_unix_seconds=now).on_conflict_do_nothing()
        )
        connection.execute(
            insert(API_KEYS)
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

    def _apply(self, connection: sa.Connection, records: Sequence[UsageRecord]) -> None:
        for record in records:
            kind = record.WhichOneof("record")
            if kind == "open":
                values = open_values(record.open)
                connection.execute(self._upsert(values, USAGE.c.tenant.is_(None)))
            elif kind == "close":
                values = close_values(record.close)
                is_open = sa.or_(
                    USAGE.c.closed_unix_seconds.is_(None),
                    # A line of a batch that failed may finish later under the same request id.
                    sa.and_(
                        USAGE.c.outcome != FINISHED, sa.literal(record.close.outcome == FINISHED)
                    ),
                )
                connection.execute(self._upsert(values, is_open))

    def _upsert(self, values: dict[str, Any], where: sa.ColumnElement[bool]) -> Any:
        """Return the statement that fills one half of a row; one that is there only `where`."""
        changes = {name: value for name, value in values.items() if name != "request_id"}
        return (
            self.database.insert(USAGE)
            .values(values)
            .on_conflict_do_update(index_elements=["request_id"], set_=changes, where=where)
        )


@contextlib.asynccontextmanager
async def open_ledger(url: str) -> AsyncIterator[Ledger]:
    """Yield the ledger at a SQLAlchemy URL; its tables are made if they are missing."""
    async with open_database(url) as database:
        await database.create(METADATA)
        yield Ledger(database)
