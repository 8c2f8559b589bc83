"""Usage counts once, names find requests."""

import asyncio
import os
import random
import signal

import pytest
import sqlalchemy as sa
from support.postgres import Postgres

from pagoda.rpc.v1.generate_pb2 import CachedTokens
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts import database as database_module
from pagoda_gateway.accounts.database import ReadOnlyError
from pagoda_gateway.accounts.ledger import Ledger, open_ledger
from pagoda_gateway.accounts.money.receipts import Receipts
from pagoda_gateway.errors import NotFoundError


def opened(request_id: str, tenant: str = "t", called: str = "") -> UsageRecord:
    return UsageRecord(
        open=UsageOpen(
            request_id=request_id,
            tenant=tenant,
            object_id=f"chatcmpl-{request_id}",
            model="m",
            endpoint="completions",
            num_prompt_tokens=10,
            opened_unix_seconds=5,
            client_request_id=called,
        )
    )


def closed(request_id: str, num_output_tokens: int = 3, outcome: str = "finished") -> UsageRecord:
    return UsageRecord(
        close=UsageClose(
            request_id=request_id,
            num_prompt_tokens=10,
            num_output_tokens=num_output_tokens,
            cached=CachedTokens(device=4, nvme=2),
            finish_reasons=["stop"],
            outcome=outcome,
            closed_unix_seconds=6,
            num_attempts=1,
            worker_ids=["w"],
            gateway_route_ms=1.5,
        )
    )


async def test_replay_in_any_order_changes_nothing(ledger: Ledger) -> None:
    records = [make(str(i)) for i in range(20) for make in (opened, closed)]
    rng = random.Random(3)
    for _ in range(3):
        rng.shuffle(records)
        for start in range(0, len(records), 7):
            await ledger.apply(records[start : start + 7])
    assert await ledger.totals("t") == (200, 60)


async def test_to_look_whether_it_can_be_written_writes_nothing(ledger: Ledger) -> None:
    await ledger.apply([opened("1")])
    before = await ledger.object_row("t", "chatcmpl-1")
    await ledger.check_writable()
    assert await ledger.object_row("t", "chatcmpl-1") == before
    assert await ledger.totals("t") == (0, 0)


@pytest.mark.parametrize(
    "role",
    [
        "CREATE ROLE {role} LOGIN IN ROLE pg_read_all_data",
        "CREATE ROLE {role} LOGIN SUPERUSER;"
        "ALTER ROLE {role} SET default_transaction_read_only = on",
        "CREATE ROLE {role} LOGIN IN ROLE pg_read_all_data; GRANT INSERT ON usage TO {role}",
    ],
)
async def test_a_role_that_may_only_read_is_found_before_it_has_to_write(
    postgres: Postgres, role: str
) -> None:
    url = postgres.new_database()
    name = f"reader_{url.rsplit('_', 1)[1]}"
    async with open_ledger(url) as ledger:
        await ledger.database.call(
            lambda connection: connection.exec_driver_sql(role.format(role=name))
        )
    async with open_ledger(url.replace("postgres@", f"{name}@")) as ledger:
        with pytest.raises(ReadOnlyError):
            await ledger.check_writable()


async def test_what_was_committed_without_an_answer_counts_once(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets the commit and hangs; it is done once it goes on, after we gave up."""
    stopped: list[int] = []

    def stop_once(connection: sa.Connection) -> None:
        if not stopped:
            stopped.append(connection.connection.driver_connection.info.backend_pid)
            os.kill(stopped[0], signal.SIGSTOP)

    records = [opened("r"), closed("r", 3)]
    async with open_ledger(postgres.new_database()) as ledger:
        sa.event.listen(ledger.database._engine, "commit", stop_once)
        monkeypatch.setattr(database_module, "CALL_SECONDS", 0.3)
        try:
            with pytest.raises(TimeoutError):
                await ledger.apply(records)
        finally:
            os.kill(stopped[0], signal.SIGCONT)
        monkeypatch.setattr(database_module, "CALL_SECONDS", 60.0)
        await ledger.apply(records)
        assert await ledger.totals("t") == (10, 3)


async def test_a_second_close_is_not_billed(ledger: Ledger) -> None:
    await ledger.apply([opened("r"), closed("r", 3), closed("r", 9)])
    assert await ledger.totals("t") == (10, 3)


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_a_request_that_finished_at_last_is_billed_so(
    ledger: Ledger, is_reversed: bool
) -> None:
    records = [opened("r"), closed("r", 1, "failed"), closed("r", 3), closed("r", 9, "failed")]
    await ledger.apply(records[::-1] if is_reversed else records)
    assert await ledger.totals("t") == (10, 3)


async def test_service_tier_is_kept(ledger: Ledger) -> None:
    line = opened("line")
    line.open.service_tier = "batch"
    await ledger.apply([opened("r"), line])
    receipts = Receipts(ledger, wait_seconds=0)
    assert (await receipts.get("t", "line"))["service_tier"] == "batch"
    assert (await receipts.get("t", "r"))["service_tier"] == "default"


async def test_ledger_keeps_its_data(url: str) -> None:
    async with open_ledger(url) as first:
        await first.apply([opened("r"), closed("r")])
    async with open_ledger(url) as second:
        assert await second.totals("t") == (10, 3)


async def test_replicas_that_apply_the_same_records_never_wait_in_a_circle(url: str) -> None:
    """Records are delivered again while another replica still applies them, in any order."""
    records = [make(f"{i:03}") for i in range(200) for make in (opened, closed)]
    async with open_ledger(url) as first, open_ledger(url) as second, asyncio.TaskGroup() as tasks:
        for ledger in (first, second):
            for seed in range(4):
                shuffled = random.Random(seed).sample(records, len(records))
                tasks.create_task(ledger.apply(shuffled))
    async with open_ledger(url) as third:
        assert await third.totals("t") == (2000, 600)


@pytest.mark.parametrize("name", ["r", "chatcmpl-r", "my-id"])
async def test_receipt_by_any_of_its_names(ledger: Ledger, name: str) -> None:
    await ledger.apply([opened("r", called="my-id"), closed("r")])
    receipt = await Receipts(ledger, wait_seconds=0).get("t", name)
    assert receipt["status"] == "closed"
    assert receipt["cached_tokens"] == {"total": 6, "device": 4, "cpu": 0, "nvme": 2}
    assert receipt["stages_ms"]["route"] == 1.5
    assert (receipt["prompt_tokens"], receipt["output_tokens"]) == (10, 3)


@pytest.mark.parametrize("name", ["r", "chatcmpl-r", "my-id"])
async def test_another_tenants_receipt_does_not_exist(ledger: Ledger, name: str) -> None:
    await ledger.apply([opened("r", called="my-id"), closed("r")])
    with pytest.raises(NotFoundError):
        await Receipts(ledger, wait_seconds=0).get("other", name)


async def test_open_receipt_has_no_numbers(ledger: Ledger) -> None:
    await ledger.apply([opened("r")])
    receipt = await Receipts(ledger, wait_seconds=0).get("t", "r")
    assert receipt["status"] == "open"
    assert "output_tokens" not in receipt


async def test_a_name_that_no_database_could_hold_is_unknown(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError):
        await Receipts(ledger, wait_seconds=0).get("t", "r\0")


async def test_client_name_used_twice_means_the_last_request(ledger: Ledger) -> None:
    later = opened("b", called="same")
    later.open.opened_unix_seconds = 50
    await ledger.apply([later, opened("a", called="same")])
    await ledger.apply([later])
    assert (await Receipts(ledger, wait_seconds=0).get("t", "same"))["request_id"] == "b"
