"""Databases come to today's tables, from any earlier state, whoever starts first."""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from support.first_ledger import FIRST_METADATA, fill_first_ledger

from pagoda_gateway.accounts.database import Database, database_address, open_database
from pagoda_gateway.accounts.keys import Authenticator
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.migrate import FOLDER, LAST_REVISION, DatabaseVersionError, migrate
from pagoda_gateway.accounts.money.receipts import Receipts
from pagoda_gateway.accounts.tables import METADATA
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.accounts.usage import tables as usage_tables
from pagoda_gateway.batches import tables as batches_tables
from pagoda_gateway.response_store import tables as responses_tables

NUM_REPLICAS = 3
REPLICA = """
import asyncio, sys
from pagoda_gateway.accounts.database import open_database

async def main():
    print("loaded", flush=True)
    sys.stdin.readline()
    async with open_database(sys.argv[1]):
        print("open", flush=True)

asyncio.run(main())
"""


async def test_migrated_tables_are_those_of_the_code(database: Database) -> None:
    for tables in (batches_tables, responses_tables, usage_tables):
        assert tables.METADATA is METADATA

    def differences(connection: sa.Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), METADATA))

    assert await database.call(differences) == []


def test_the_last_revision_is_the_one_that_the_code_waits_for() -> None:
    assert ScriptDirectory(str(FOLDER)).get_heads() == [LAST_REVISION]


async def test_a_start_without_a_migration_loads_no_alembic(url: str) -> None:
    async with open_database(url):
        pass
    code = (
        "import asyncio, sys\n"
        "from pagoda_gateway.accounts.database import open_database\n"
        "async def main():\n    async with open_database(sys.argv[1]): pass\n"
        "asyncio.run(main())\nprint('alembic' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, url],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
    )
    assert done.stdout == "False\n"


async def test_ledger_of_the_first_version_is_taken_over(url: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    engine = sa.create_engine(database_address(url))
    FIRST_METADATA.create_all(engine)
    fill_first_ledger(engine)
    engine.dispose()
    async with open_database(url) as database:
        tenancy = Tenancy.of(database)
        key = await Authenticator(tenancy.api_keys).authenticate("Bearer sk-old")
        assert (key.tenant, key.api_key_id, key.models) == ("default", "key-old", None)
        assert await tenancy.api_keys.ensure("default", "bootstrap", "sk-old") == (
            "key-old",
            "sk-old",
        )
        rows = {row["api_key_id"]: row for row in (await tenancy.api_keys.page()).rows}
        assert rows["key-gone"]["revoked_unix_seconds"] == 3.0
        assert (await tenancy.tenants.records.get("default"))["organisation"] == "default"
        ledger = Ledger(database)
        assert await ledger.totals("default") == (10, 3)
        receipt = await Receipts(ledger, wait_seconds=0).get("default", "my-id")
        assert (receipt["id"], receipt["finish_reasons"]) == ("chatcmpl-r", ["stop"])


async def test_keys_that_were_rotated_before_learn_whose_successors_they_are(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    with monkeypatch.context() as before:
        before.setattr("pagoda_gateway.accounts.migrate.LAST_REVISION", "0011")
        engine = sa.create_engine(database_address(url))
        migrate(engine)
    keys = [("k1", "k2"), ("k2", "k3"), ("k3", None), ("alone", None)]
    with engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO tenants (tenant, created_unix_seconds) VALUES ('t', 1)")
        )
        for key, successor in keys:
            connection.execute(
                sa.text(
                    "INSERT INTO api_keys (api_key_id, tenant, key_hash, label, rotated_to, "
                    "created_unix_seconds) VALUES (:key, 't', :key, '', :successor, 1)"
                ),
                {"key": key, "successor": successor},
            )
    engine.dispose()
    async with open_database(url) as database:
        rows = (await Tenancy.of(database).api_keys.page()).rows
    assert {row["api_key_id"]: row["first_key_id"] for row in rows} == {
        "k1": None, "k2": "k1", "k3": "k1", "alone": None,
    }  # fmt: skip


async def test_an_older_gateway_goes_on_after_the_migration(database: Database) -> None:
    """Replicas of the version before still run while the first new one has migrated."""

    def as_before(connection: sa.Connection) -> None:
        tenants, keys = (FIRST_METADATA.tables[name] for name in ("tenants", "api_keys"))
        connection.execute(sa.insert(tenants).values(tenant="t", created_unix_seconds=1.0))
        connection.execute(
            sa.insert(keys).values(
                api_key_id="k", tenant="t", key_hash="h", label="", created_unix_seconds=1.0
            )
        )
        assert connection.scalar(sa.select(keys.c.tenant)) == "t"

    await database.call(as_before)


async def test_opening_again_changes_nothing(url: str) -> None:
    async with open_database(url) as first:
        await Tenancy.of(first).organisations.create("acme")
    async with open_database(url) as second:
        names = [
            row["organisation"] for row in (await Tenancy.of(second).organisations.page()).rows
        ]
    assert names == ["acme", "default"]


async def test_a_newer_ledger_is_refused(url: str) -> None:
    async with open_database(url) as database:
        await database.call(
            lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        )
    with pytest.raises(DatabaseVersionError, match="9999"):
        async with open_database(url):
            pass


@pytest.mark.slow
def test_replicas_that_start_together_migrate_once(url: str) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.ExitStack() as stack:
        replicas = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", REPLICA, url],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, env=environ,
                )
            )
            for _ in range(NUM_REPLICAS)
        ]  # fmt: skip
        for replica in replicas:
            assert replica.stdout
            assert replica.stdout.readline() == "loaded\n"
        for replica in replicas:
            assert replica.stdin
            replica.stdin.write("\n")
            replica.stdin.flush()
        for replica in replicas:
            output, errors = replica.communicate(timeout=60)
            assert (replica.returncode, output) == (0, "open\n"), errors
