"""Whose fault a refusal of the database is: its own, or that of what a message says."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import sqlalchemy as sa
from support.usage_records import both

from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageOpen, UsageRecord
from pagoda_gateway.accounts import ledger
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.money.tables import RECEIPT_CHAINS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.usage.applier import Applier
from pagoda_gateway.accounts.usage_rows import open_values
from pagoda_runtime.errors import MessageContentError
from pagoda_runtime.process.health import Health

MESSAGE = UsageRecord(
    batch=[
        UsageRecord(open=UsageOpen(request_id="first")),
        UsageRecord(sequence=SequenceUsage(request_id="second", record_id="e-1")),
    ]
)


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def applier(database: Database, health: Health) -> Applier:
    applier = Applier(cast(Any, None), database, health)
    health.set_ready("ledger", True)
    return applier


def refuse(applier: Applier, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Have the database raise where records of sequences are written."""
    call = AsyncMock(side_effect=error)
    monkeypatch.setattr(applier.sequences, "_database", SimpleNamespace(call=call))


@pytest.mark.parametrize(
    "error",
    [
        OverflowError("Python int too large to convert to SQLite INTEGER\nmore"),
        ValueError("a value"),
        sa.exc.DataError("INSERT", {}, Exception("integer out of range")),
        sa.exc.IntegrityError("INSERT", {}, Exception("NOT NULL constraint failed")),
    ],
)
async def test_content_is_named_and_the_ledger_stays_ready(
    applier: Applier, health: Health, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    refuse(applier, monkeypatch, error)
    with pytest.raises(MessageContentError, match="2 usage records, of 'first', 'second'") as said:
        await applier.apply([MESSAGE, UsageRecord()])

    assert type(error).__name__ in str(said.value)
    assert "\n" not in str(said.value)
    assert health.report()["components"]["ledger"]["ready"]


async def test_what_is_refused_takes_nothing_else_of_its_message_along(
    applier: Applier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(record: UsageOpen) -> dict[str, Any]:
        return open_values(record) | {"num_choices": 2**64 if record.num_choices == 9 else 1}

    monkeypatch.setattr(ledger, "open_values", values)
    opens = [
        UsageRecord(open=UsageOpen(request_id=f"r-{i}", num_choices=9 if i % 4 == 3 else 1))
        for i in range(10)
    ]
    with pytest.raises(MessageContentError, match="2 usage records, of 'r-3', 'r-7': "):
        await applier.apply([UsageRecord(batch=opens)])

    rows = await applier.ledger.database.rows(sa.select(USAGE.c.request_id))
    assert sorted(row["request_id"] for row in rows) == [f"r-{i}" for i in range(10) if i % 4 != 3]


async def test_what_is_wrong_in_the_ledger_itself_has_records_wait(
    applier: Applier, health: Health
) -> None:
    await applier.ledger.apply([*both("before-1"), *both("before-2")])
    chains = {"last_number": 1}  # as after a backup that is not whole: number 2 is there twice
    database = applier.ledger.database
    await database.call(lambda found: found.execute(sa.update(RECEIPT_CHAINS).values(chains)))
    with pytest.raises(sa.exc.IntegrityError):
        await applier.apply([UsageRecord(batch=both("after"))])

    ready = health.report()["components"]["ledger"]
    assert not ready["ready"]
    assert "does not take records (IntegrityError); records wait" in ready["detail"]


@pytest.mark.parametrize(
    "error",
    [sa.exc.OperationalError("INSERT", {}, Exception("gone")), TimeoutError(), OSError("no")],
)
async def test_a_database_that_is_away_is_said_to_be(
    applier: Applier, health: Health, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    refuse(applier, monkeypatch, error)
    with pytest.raises(type(error)):
        await applier.apply([MESSAGE])

    assert not health.report()["components"]["ledger"]["ready"]
