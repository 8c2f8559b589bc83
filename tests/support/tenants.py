"""Tenants as rows, for tests of what becomes of theirs."""

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tenancy.tables import TENANTS


async def add_deleted_tenant(database: Database, tenant: str) -> None:
    """Have had a tenant that is deleted by now."""
    row = sa.insert(TENANTS).values(
        tenant=tenant, created_unix_seconds=1.0, deleted_unix_seconds=2.0
    )
    await database.call(lambda c: c.execute(row))
