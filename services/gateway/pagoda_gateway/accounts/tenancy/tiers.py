"""Tiers: named sets of limits, and a weight. Stores them; who admits or schedules acts on them."""

from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tenancy.records import Announce, Clock, Page, Records
from pagoda_gateway.accounts.tenancy.tables import API_KEYS, ORGANISATIONS, TENANTS, TIERS
from pagoda_gateway.errors import ConflictError, shorten

_TIER: sa.BindParameter[str] = sa.bindparam("tier")
_HOLDERS = {
    "organisations": sa.select(ORGANISATIONS.c.organisation)
    .where(ORGANISATIONS.c.tier == _TIER)
    .limit(1),
    "tenants": sa.select(TENANTS.c.tenant).where(TENANTS.c.tier == _TIER).limit(1),
    "keys": sa.select(API_KEYS.c.api_key_id)
    .where(API_KEYS.c.tier == _TIER, API_KEYS.c.revoked_unix_seconds.is_(None))
    .limit(1),
}


class Tiers:
    """Tiers in the database; their limits are the columns of `TIERS`, null is none."""

    def __init__(self, database: Database, announce: Announce, clock: Clock) -> None:
        self._database = database
        self._announce = announce
        self._clock = clock
        self.records = Records(database, TIERS, "tier")

    async def create(self, tier: str, limits: dict[str, Any]) -> sa.RowMapping:
        """Store a new tier.

        Raises:
            ConflictError: its id is taken.
        """
        values = {**limits, "tier": tier, "created_unix_seconds": self._clock()}
        row = await self.records.create(values)
        await self._announce(AccountChange(tier=tier))
        return row

    async def page(self, *, after: str = "", limit: int = 100) -> Page:
        """Return some."""
        return await self.records.page(after=after, limit=limit)

    async def update(self, tier: str, limits: dict[str, Any]) -> sa.RowMapping:
        """Change those limits that are given.

        Raises:
            NotFoundError: there is no such tier.
        """

        def change(connection: sa.Connection) -> sa.RowMapping:
            self.records.read(connection, tier, for_change=True)
            return self.records.change(connection, tier, limits)

        row = await self._database.call(change)
        await self._announce(AccountChange(tier=tier))
        return row

    async def delete(self, tier: str) -> None:
        """Delete one that nobody has.

        Raises:
            NotFoundError: there is no such tier.
            ConflictError: an organisation, a tenant or a key that is not revoked has it.
        """

        def delete(connection: sa.Connection) -> None:
            self.records.read(connection, tier, for_change=True)
            for noun, holder in _HOLDERS.items():
                if (name := connection.scalar(holder, {"tier": tier})) is not None:
                    raise ConflictError(
                        f"{noun} have the tier {shorten(tier)}, such as {shorten(name)}: "
                        "give them another one first"
                    )
            revoked = sa.update(API_KEYS).where(API_KEYS.c.tier == tier).values(tier=None)
            connection.execute(revoked)
            connection.execute(sa.delete(TIERS).where(TIERS.c.tier == tier))

        await self._database.call(delete)

    def require_given(self, connection: sa.Connection, values: dict[str, Any]) -> None:
        """Hold the tier that `values` name, if they name one.

        Raises:
            InvalidRequestError: there is none.
        """
        if (tier := values.get("tier")) is not None:
            self.records.require(connection, tier, param="tier")

    async def are_there(self) -> bool:
        """Return whether there is any."""
        return await self._database.scalar(sa.select(TIERS.c.tier).limit(1)) is not None
