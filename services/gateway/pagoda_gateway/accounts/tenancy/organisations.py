"""Organisations: who has tenants."""

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tenancy.records import Clock, Page, Records, wall_clock
from pagoda_gateway.accounts.tenancy.tables import ORGANISATIONS, TENANTS
from pagoda_gateway.errors import ConflictError, shorten


class Organisations:
    """Organisations in the database."""

    def __init__(self, database: Database, clock: Clock = wall_clock) -> None:
        self._database = database
        self._clock = clock
        self.records = Records(database, ORGANISATIONS, "organisation")

    async def create(self, organisation: str, *, label: str = "") -> sa.RowMapping:
        """Store a new organisation.

        Raises:
            ConflictError: its id is taken.
        """
        return await self.records.create(
            {
                "organisation": organisation,
                "label": label,
                "created_unix_seconds": self._clock(),
            }
        )

    async def page(self, *, after: str = "", limit: int = 100) -> Page:
        """Return some that are not deleted."""
        return await self.records.page(
            ORGANISATIONS.c.deleted_unix_seconds.is_(None), after=after, limit=limit
        )

    async def update(self, organisation: str, *, label: str) -> sa.RowMapping:
        """Change the label.

        Raises:
            NotFoundError: there is no such organisation.
        """

        def change(connection: sa.Connection) -> sa.RowMapping:
            self.records.read(connection, organisation, for_change=True)
            return self.records.change(connection, organisation, {"label": label})

        return await self._database.call(change)

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
                .values(deleted_unix_seconds=self._clock())
            )

        await self._database.call(delete)
