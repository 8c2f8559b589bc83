"""Whose fault a refusal of the database is: its own, or that of what a message says."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import sqlalchemy as sa

from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageOpen, UsageRecord
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.usage.applier import Applier
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
    async def apply(_records: object) -> None:
        raise error

    monkeypatch.setattr(applier.sequences, "apply", apply)


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
    apply = applier.ledger.apply

    async def refuse_some(records: Sequence[UsageRecord]) -> None:
        if any(record.open.request_id in {"r-3", "r-7"} for record in records):
            raise OverflowError("too large")
        await apply(records)

    monkeypatch.setattr(applier.ledger, "apply", refuse_some)
    opens = [UsageRecord(open=UsageOpen(request_id=f"r-{i}", tenant="a")) for i in range(10)]
    with pytest.raises(MessageContentError, match="2 usage records, of 'r-3', 'r-7': Overflow"):
        await applier.apply([UsageRecord(batch=opens)])

    rows = await applier.ledger.database.rows(sa.select(USAGE.c.request_id))
    assert sorted(row["request_id"] for row in rows) == [f"r-{i}" for i in range(10) if i % 4 != 3]


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
