"""One transaction for each piece of work; tables of older versions get what they miss."""

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.accounts.ledger import open_ledger

METADATA = sa.MetaData()
THINGS = sa.Table("things", METADATA, sa.Column("name", sa.String(8), primary_key=True))


async def test_work_that_raises_changes_nothing(tmp_path: Path) -> None:
    async with open_database(f"sqlite:///{tmp_path}/some.sqlite3") as database:
        await database.create(METADATA)

        def fail(connection: sa.Connection) -> None:
            connection.execute(sa.insert(THINGS).values(name="a"))
            raise ValueError("changed my mind")

        with pytest.raises(ValueError, match="mind"):
            await database.call(fail)
        assert await database.rows(sa.select(THINGS)) == []


async def test_a_ledger_of_an_older_version_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    async with open_ledger(f"sqlite:///{path}"):
        pass
    with sqlite3.connect(path) as old:
        old.execute("ALTER TABLE usage DROP COLUMN service_tier")
        old.execute("INSERT INTO usage (request_id, tenant, model) VALUES ('r', 't', 'm')")
    old.close()
    for _ in range(2):
        async with open_ledger(f"sqlite:///{path}") as ledger:
            row = await ledger.usage_of("t", "r")
        assert row is not None
        assert (row["model"], row["service_tier"]) == ("m", None)


async def test_two_replicas_may_add_a_column_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/some.sqlite3"
    newer = sa.MetaData()
    THINGS.to_metadata(newer).append_column(sa.Column("size", sa.Integer))
    async with open_database(url) as one, open_database(url) as other:
        await one.create(METADATA)
        databases: list[Database] = [one, other]
        for database in databases:
            await database.create(newer)
        columns = await one.call(lambda c: sa.inspect(c).get_columns("things"))
    assert [column["name"] for column in columns] == ["name", "size"]
