"""Tenants: whom requests are admitted, cached and billed for. Each belongs to an organisation."""

from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.tenancy.organisations import Organisations
from pagoda_gateway.accounts.tenancy.records import Announce, Clock, Page, Records
from pagoda_gateway.accounts.tenancy.tables import API_KEYS, TENANT_MOVES, TENANTS
from pagoda_gateway.accounts.tenancy.tiers import Tiers

_DAY_SECONDS = 86_400


class Tenants:
    """Tenants in the database."""

    def __init__(
        self,
        database: Database,
        organisations: Organisations,
        tiers: Tiers,
        announce: Announce,
        clock: Clock,
    ) -> None:
        self._database = database
        self._organisations = organisations
        self._tiers = tiers
        self._announce = announce
        self._clock = clock
        self.records = Records(database, TENANTS, "tenant")

    async def create(
        self, tenant: str, *, organisation: str, tier: str | None = None, label: str = ""
    ) -> sa.RowMapping:
        """Store a new tenant.

        Raises:
            ConflictError: its id is taken.
            InvalidRequestError: there is no such organisation or tier.
        """
        references = {"organisation": organisation, "tier": tier}

        def create(connection: sa.Connection) -> sa.RowMapping:
            self._check(connection, references)
            return self.records.add(
                connection,
                {
                    **references,
                    "tenant": tenant,
                    "label": label,
                    "created_unix_seconds": self._clock(),
                },
            )

        return await self._database.call(create)

    async def page(
        self, *, organisation: str | None = None, after: str = "", limit: int = 100
    ) -> Page:
        """Return some that are not deleted, of one organisation or of all."""
        conditions: list[sa.ColumnElement[bool]] = [TENANTS.c.deleted_unix_seconds.is_(None)]
        if organisation is not None:
            conditions.append(TENANTS.c.organisation == comparable(organisation))
        return await self.records.page(*conditions, after=after, limit=limit)

    async def update(self, tenant: str, values: dict[str, Any]) -> sa.RowMapping:
        """Change those of `organisation`, `tier` and `label` that are given.

        Raises:
            NotFoundError: there is no such tenant.
            InvalidRequestError: there is no such organisation or tier.
        """

        def change(connection: sa.Connection) -> sa.RowMapping:
            row = self.records.read(connection, tenant, for_change=True)
            self._check(connection, values)
            if values.get("organisation", row["organisation"]) != row["organisation"]:
                self._note_move(connection, row)
            return self.records.change(connection, tenant, values)

        row = await self._database.call(change)
        await self._announce(AccountChange(tenant=tenant))
        return row

    async def delete(self, tenant: str) -> None:
        """Revoke all keys of a tenant and delete it; receipts stay, and its id stays taken.

        Raises:
            NotFoundError: there is no such tenant.
        """
        now = self._clock()

        def delete(connection: sa.Connection) -> None:
            self.records.read(connection, tenant, for_change=True)
            connection.execute(
                sa.update(API_KEYS)
                .where(API_KEYS.c.tenant == tenant, API_KEYS.c.revoked_unix_seconds.is_(None))
                .values(revoked_unix_seconds=now)
            )
            connection.execute(
                sa.update(TENANTS)
                .where(TENANTS.c.tenant == tenant)
                .values(deleted_unix_seconds=now, tier=None)
            )

        await self._database.call(delete)
        await self._announce(AccountChange(tenant=tenant))

    def _note_move(self, connection: sa.Connection, row: sa.RowMapping) -> None:
        """Remember which organisation a tenant leaves: what it used so far stays that one's."""
        last = connection.scalar(
            sa.select(sa.func.max(TENANT_MOVES.c.moved_unix_seconds)).where(
                TENANT_MOVES.c.tenant == row["tenant"]
            )
        )
        now = max(self._clock(), (last or 0.0) + 0.001)  # replicas' clocks differ
        values = {
            "tenant": row["tenant"],
            "moved_unix_seconds": now,
            "day": int(now // _DAY_SECONDS),
            "organisation": row["organisation"],
        }
        connection.execute(sa.insert(TENANT_MOVES).values(values))

    def _check(self, connection: sa.Connection, values: dict[str, Any]) -> None:
        if (name := values.get("organisation")) is not None:
            self._organisations.records.require(connection, name, param="organisation")
        self._tiers.require_given(connection, values)
