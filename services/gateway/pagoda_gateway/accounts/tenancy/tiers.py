"""Tiers: named sets of limits. Stores them; whoever admits requests enforces them."""

from typing import Any

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tenancy.records import Clock, Page, Records, wall_clock
from pagoda_gateway.accounts.tenancy.tables import TENANTS, TIERS
from pagoda_gateway.errors import ConflictError, shorten


class Tiers:
    """Tiers in the database; their limits are the columns of `TIERS`, null is none."""

    def __init__(self, database: Database, clock: Clock = wall_clock) -> None:
        self._database = database
        self._clock = clock
        self.records = Records(database, TIERS, "tier")

    async def create(self, tier: str, limits: dict[str, Any]) -> sa.RowMapping:
        """Store a new tier.

        Raises:
            ConflictError: its id is taken.
        """
        values = {**limits, "tier": tier, "created_unix_seconds": self._clock()}
        return await self.records.create(values)

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

        return await self._database.call(change)

    async def delete(self, tier: str) -> None:
        """Delete one that no tenant has.

        Raises:
            NotFoundError: there is no such tier.
            ConflictError: a tenant has it.
        """
        holder = sa.select(TENANTS.c.tenant).where(TENANTS.c.tier == tier).limit(1)

        def delete(connection: sa.Connection) -> None:
            self.records.read(connection, tier, for_change=True)
            if (tenant := connection.scalar(holder)) is not None:
                raise ConflictError(
                    f"tenants have the tier {shorten(tier)}, such as {shorten(tenant)}: "
                    "give them another one first"
                )
            connection.execute(sa.delete(TIERS).where(TIERS.c.tier == tier))

        await self._database.call(delete)
