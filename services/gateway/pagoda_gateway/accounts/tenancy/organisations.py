"""Organisations: who has tenants."""

from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tenancy.records import Announce, Clock, Page, Records
from pagoda_gateway.accounts.tenancy.tables import ORGANISATIONS, TENANTS
from pagoda_gateway.accounts.tenancy.tiers import Tiers
from pagoda_gateway.errors import ConflictError, shorten


class Organisations:
    """Organisations in the database."""

    def __init__(self, database: Database, tiers: Tiers, announce: Announce, clock: Clock) -> None:
        self._database = database
        self._tiers = tiers
        self._announce = announce
        self._clock = clock
        self.records = Records(database, ORGANISATIONS, "organisation")

    async def create(
        self, organisation: str, *, tier: str | None = None, label: str = ""
    ) -> sa.RowMapping:
        """Store a new organisation.

        Raises:
            ConflictError: its id is taken.
            InvalidRequestError: there is no such tier.
        """
        values = {
            "organisation": organisation,
            "tier": tier,
            "label": label,
            "created_unix_seconds": self._clock(),
        }

        def create(connection: sa.Connection) -> sa.RowMapping:
            self._tiers.require_given(connection, values)
            return self.records.add(connection, values)

        return await self._database.call(create)

    async def page(self, *, after: str = "", limit: int = 100) -> Page:
        """Return some that are not deleted."""
        return await self.records.page(
            ORGANISATIONS.c.deleted_unix_seconds.is_(None), after=after, limit=limit
        )

    async def update(self, organisation: str, values: dict[str, Any]) -> sa.RowMapping:
        """Change those of `tier` and `label` that are given.

        Raises:
            NotFoundError: there is no such organisation.
            InvalidRequestError: there is no such tier.
        """

        def change(connection: sa.Connection) -> sa.RowMapping:
            self.records.read(connection, organisation, for_change=True)
            self._tiers.require_given(connection, values)
            return self.records.change(connection, organisation, values)

        row = await self._database.call(change)
        await self._announce(AccountChange(organisation=organisation))
        return row

    async def delete(self, organisation: str) -> None:
        """Delete one that has no tenants any more; its id stays taken.

        Raises:
            NotFoundError: there is no such organisation.
            ConflictError: it has tenants.
        """
        has_tenants = (
            sa.select(TENANTS.c.tenant)
            .where(TENANTS.c.organisation == organisation, TENANTS.c.deleted_unix_seconds.is_(None))
            .limit(1)
        )

        def delete(connection: sa.Connection) -> None:
            self.records.read(connection, organisation, for_change=True)
            if (tenant := connection.scalar(has_tenants)) is not None:
                raise ConflictError(
                    f"the organisation {shorten(organisation)} has tenants, such as "
                    f"{shorten(tenant)}: delete them or move them to another one first"
                )
            connection.execute(
                sa.update(ORGANISATIONS)
                .where(ORGANISATIONS.c.organisation == organisation)
                .values(deleted_unix_seconds=self._clock(), tier=None)
            )

        await self._database.call(delete)
