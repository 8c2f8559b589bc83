"""The usage log keeps what is not applied yet and nothing else."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.context import Context
from support.running_gateway import running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for
from support.small_disk import SmallDisk

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway import gateway
from pagoda_gateway.accounts import usage_log
from pagoda_gateway.accounts.ledger import open_ledger
from pagoda_gateway.accounts.usage_log import UsageLog
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MAX_BYTES = 8192
NUM_REQUESTS = 30  # their records are more than twice as long as the log may be


async def num_logged(bus: Bus) -> int:
    state = (await bus._client.jetstream().stream_info(subjects.USAGE_STREAM)).state
    return int(state.messages)


@pytest.mark.slow
async def test_a_log_smaller_than_all_records_never_refuses_a_request(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "LEDGER_TRIM_SECONDS", 0.01)
    with nats_server(tmp_path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model_folder, ScriptedWorker(bus), usage_log_bytes=MAX_BYTES
            ) as running,
        ):
            for _ in range(NUM_REQUESTS):
                answer = await running.chat(max_tokens=2)
                assert answer.status_code == 200, answer.text
                assert (await running.receipt(answer))["status"] == "closed"
            assert (await running.gateway.ledger.totals("default"))[1] == 2 * NUM_REQUESTS


async def test_a_log_that_is_full_of_applied_records_takes_new_ones_after_a_restart(
    tmp_path: Path,
) -> None:
    """As an earlier version left it: every record applied, acknowledged and kept."""
    with nats_server(tmp_path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with (
            Bus.connect(common, name="gateway") as bus,
            open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite3") as ledger,
        ):
            log = UsageLog(bus, timeout_seconds=5)
            await log.ensure_stream(MAX_BYTES)
            old = await bus.consume(
                subjects.USAGE_STREAM, gateway.LEDGER_CONSUMER, UsageRecord, ledger.apply, batch=8
            )
            num_stored = await fill(bus)
            await applied(bus, num_stored)
            await old.unsubscribe()

            await log.ensure_stream(MAX_BYTES)
            await bus.consume(
                subjects.USAGE_STREAM,
                gateway.LEDGER_CONSUMER,
                UsageRecord,
                ledger.apply,
                batch=8,
                trim_seconds=0.01,
            )
            async with asyncio.timeout(10):
                while await num_logged(bus):
                    pass
            await log.open(UsageOpen(request_id="new", tenant="t"), Context())


async def test_a_record_whose_acknowledgement_was_lost_counts_once(
    nats_common: CommonSettings, tmp_path: Path
) -> None:
    """One replica ends after it applied a record and before it said so; another gets it again."""
    async with (
        Bus.connect(nats_common, name="gateway-1") as first,
        Bus.connect(nats_common, name="gateway-2") as second,
        open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite3") as ledger,
        asyncio.timeout(20),
    ):
        is_applied, num_applied = asyncio.Event(), 0

        async def apply_and_hang(records: Sequence[UsageRecord]) -> None:
            await ledger.apply(records)
            is_applied.set()
            await asyncio.Event().wait()

        async def apply(records: Sequence[UsageRecord]) -> None:
            nonlocal num_applied
            await ledger.apply(records)
            num_applied += len(records)

        await UsageLog(first, timeout_seconds=5).ensure_stream(1 << 20)
        await ledger.apply([UsageRecord(open=UsageOpen(request_id="r", tenant="t"))])
        close = UsageClose(request_id="r", num_output_tokens=7)
        assert await UsageLog(first, timeout_seconds=5).close(close, Context())
        dying = await first.consume(
            subjects.USAGE_STREAM, "once", UsageRecord, apply_and_hang, batch=1, trim_seconds=0.01
        )
        await is_applied.wait()
        await dying.unsubscribe()
        await second.consume(
            subjects.USAGE_STREAM, "once", UsageRecord, apply, batch=1, trim_seconds=0.01
        )
        while await num_logged(second):
            pass

        assert num_applied == 1
        assert (await ledger.totals("t"))[1] == 7


async def test_a_full_disk_is_a_refusal_that_names_it_until_there_is_room_again(
    model_folder: Path, small_disk: SmallDisk
) -> None:
    with nats_server(small_disk.path) as nats:
        common = settings_for(nats, home=model_folder.parent)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model_folder, ScriptedWorker(bus),
                usage_log_bytes=1 << 20, usage_timeout_seconds=1.0,
            ) as running,
        ):  # fmt: skip
            health = running.gateway.health
            assert (await running.chat(max_tokens=2)).status_code == 200
            await running.receipt(await running.chat(max_tokens=2))

            small_disk.fill()
            async with asyncio.timeout(30):
                while health.is_ready or not health.report()["components"].get("usage log"):
                    answer = await running.chat(max_tokens=2)
            refused = await running.chat(max_tokens=2)
            assert (answer.status_code, refused.status_code) == (503, 503)
            assert "NATS does not store" in refused.text
            detail = health.report()["components"]["usage log"]["detail"]
            assert "room on its disk" in detail or "no space" in detail

            small_disk.make_room()
            async with asyncio.timeout(30):
                while not health.report()["components"]["usage log"]["ready"]:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            answer = await running.chat(max_tokens=2)
            assert answer.status_code == 200
            assert (await running.receipt(answer))["status"] == "closed"


async def fill(bus: Bus) -> int:
    """Store open records until the log is full; return their number."""
    log = UsageLog(bus, timeout_seconds=5)
    for number in range(1000):
        try:
            await log.open(UsageOpen(request_id=str(number), tenant="t"), Context())
        except usage_log.UnavailableError:
            return number
    raise AssertionError("the log never filled up")


async def applied(bus: Bus, num_records: int) -> None:
    """Return once the ledger's consumer has acknowledged everything."""
    jetstream = bus._client.jetstream()
    async with asyncio.timeout(10):
        while True:
            info = await jetstream.consumer_info(subjects.USAGE_STREAM, gateway.LEDGER_CONSUMER)
            if info.ack_floor.stream_seq == num_records:
                return
