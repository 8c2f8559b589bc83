"""Usage records wait where they are safe: in the outbox, then in NATS, and leave when applied."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from support.postgres import Postgres
from support.running_gateway import Running, running_applier, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import Server, nats_server, settings_for
from support.small_disk import SmallDisk

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.database import open_database
from pagoda_gateway.accounts.ledger import open_ledger
from pagoda_gateway.accounts.usage import applier, forwarder
from pagoda_gateway.accounts.usage.applier import Applier
from pagoda_gateway.accounts.usage.deliveries import deliveries_in
from pagoda_gateway.accounts.usage.forwarder import RECORDS_TOGETHER, Forwarder
from pagoda_gateway.accounts.usage.outbox import Outbox
from pagoda_gateway.accounts.usage.stream import ensure_usage_stream
from pagoda_gateway.accounts.usage.usage_log import UsageLog
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import UnavailableError
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import stream_repair, subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MAX_BYTES = 8192
NUM_REQUESTS = 30  # their records are more than twice as long as the log may be


@pytest_asyncio.fixture(loop_scope="module")
async def own_nats(tmp_path: Path) -> AsyncIterator[Server]:
    with nats_server(tmp_path) as server:
        yield server


def opened(request_id: str) -> UsageOpen:
    return UsageOpen(request_id=request_id, tenant="t", gateway_id="g", num_prompt_tokens=5)


def closed(request_id: str, num_output_tokens: int = 7) -> UsageClose:
    return UsageClose(
        request_id=request_id,
        num_output_tokens=num_output_tokens,
        num_prompt_tokens=5,
        outcome="finished",
        closed_unix_seconds=1.0,
    )


@contextlib.asynccontextmanager
async def sending(
    bus: Bus, root: Path, name: str, *, is_sending: bool = True, max_bytes: int = 1 << 20
) -> AsyncIterator[tuple[UsageLog, Outbox]]:
    """A gateway's usage log and what sends it on."""
    outbox = await Outbox.open(root, name, max_bytes=max_bytes, on_state=lambda *_: None)
    forwarder = Forwarder(bus, outbox, root, timeout_seconds=2, unix_clock=time.time)
    tasks = BackgroundTasks()
    if is_sending:
        tasks.start(forwarder.run())
        tasks.start(forwarder.adopt_forever())
    yield UsageLog(outbox, timeout_seconds=5, clock=time.time), outbox
    await tasks.close()
    await outbox.close()


async def num_logged(bus: Bus) -> int:
    state = (await bus._client.jetstream().stream_info(subjects.USAGE_STREAM)).state
    return int(state.messages)


@pytest.mark.slow
async def test_a_log_smaller_than_all_records_never_refuses_a_request(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_nats: Server
) -> None:
    async def ensure_small_stream(bus: Bus, _max_bytes: int) -> None:
        await ensure_usage_stream(bus, MAX_BYTES)

    monkeypatch.setattr(applier, "ensure_usage_stream", ensure_small_stream)
    monkeypatch.setattr(applier, "TRIM_SECONDS", 0.01)
    common = settings_for(own_nats, home=tmp_path)
    async with (
        Bus.connect(common, name="workers") as bus,
        running_gateway(common, bus, model_folder, ScriptedWorker(bus)) as running,
    ):
        for _ in range(NUM_REQUESTS):
            answer = await running.chat(max_tokens=2)
            assert answer.status_code == 200, answer.text
            assert (await running.receipt(answer))["status"] == "closed"
        assert (await running.gateway.ledger.totals("default"))[1] == 2 * NUM_REQUESTS


async def test_records_that_come_within_a_moment_go_in_one_message(
    tmp_path: Path, own_nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast the disk is: a message a record costs NATS and the applier too much."""
    monkeypatch.setattr(forwarder, "GATHER_SECONDS", 0.5)
    async with (
        Bus.connect(settings_for(own_nats, home=tmp_path), name="gateway") as bus,
        asyncio.timeout(60),
    ):
        await ensure_usage_stream(bus, 1 << 20)
        async with sending(bus, tmp_path / "outboxes", "g") as (log, outbox):
            await log.close(closed("first"))
            await outbox.is_drained.wait()  # at once
            for number in range(20):
                await log.close(closed(f"r{number}"))
            await outbox.is_drained.wait()
        assert 2 <= await num_logged(bus) < 10


async def test_records_of_an_older_gateway_are_applied(tmp_path: Path, own_nats: Server) -> None:
    """It sent one a message, and what it stored before the upgrade is in the stream."""
    common = settings_for(own_nats, home=tmp_path)
    async with Bus.connect(common, name="gateway") as bus:
        await ensure_usage_stream(bus, 1 << 20)
        for subject, record in (
            ("pagoda.v1.usage.close", UsageRecord(close=closed("old"))),
            ("pagoda.v1.usage.open", UsageRecord(open=opened("old"))),
        ):
            await bus.publish_durable(subject, record, message_id=subject, timeout_seconds=5)
        async with running_applier(common) as running, asyncio.timeout(60):
            while (await running.ledger.totals("t")) != (5, 7):
                await running.ledger.wait_applied(1)


async def test_a_record_whose_acknowledgement_was_lost_counts_once(
    nats_common: CommonSettings, tmp_path: Path
) -> None:
    """One applier ends after it applied a record and before it said so; another gets it again."""
    async with (
        Bus.connect(nats_common, name="gateway-1") as first,
        Bus.connect(nats_common, name="gateway-2") as second,
        open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite") as ledger,
        asyncio.timeout(60),
    ):
        is_applied, num_applied = asyncio.Event(), 0

        async def apply_and_hang(records: Sequence[UsageRecord]) -> None:
            await ledger.apply(list(applier.flattened(records)))
            is_applied.set()
            await asyncio.Event().wait()

        async def apply(records: Sequence[UsageRecord]) -> None:
            nonlocal num_applied
            await ledger.apply(list(applier.flattened(records)))
            num_applied += len(records)

        await ledger.apply([UsageRecord(open=opened("r"))])
        await ensure_usage_stream(first, 1 << 20)
        async with sending(first, tmp_path, "g") as (log, outbox):
            await log.close(closed("r"))
            await outbox.is_drained.wait()
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


async def test_requests_flow_while_nats_stores_nothing_and_nothing_is_lost(
    model_folder: Path, small_disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS's disk is full; gateway and ledger have another one."""
    monkeypatch.setattr(forwarder, "RETRY_SECONDS", 0.05)
    # Of a stream that was just made nobody's complaint is heard, as it may be of the one before.
    monkeypatch.setattr(stream_repair, "MADE_SECONDS", 1.0)
    with nats_server(small_disk.path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common,
                bus,
                model_folder,
                ScriptedWorker(bus),
                usage_log_bytes=1 << 20,
                usage_timeout_seconds=2.0,  # NATS does not answer what it cannot write
            ) as running,
        ):
            small_disk.fill()
            num_asked = 0
            async with asyncio.timeout(60):
                while not is_kept(running, num_bytes=20_000):
                    assert (await running.chat(max_tokens=2)).status_code == 200
                    num_asked += 1
            assert running.gateway.health.report()["components"]["usage log"]["ready"]

            small_disk.make_room()
            answer = await running.chat(max_tokens=2)
            async with asyncio.timeout(60):
                while (await running.receipt(answer)).get("status") != "closed":
                    pass
            assert (await running.gateway.ledger.totals("default"))[1] == 2 * (num_asked + 1)


def is_kept(running: Running, *, num_bytes: int) -> bool:
    """Whether records wait in the outbox."""
    return running.gateway.usage_log._outbox.num_bytes >= num_bytes


async def test_a_full_disk_is_a_refusal_that_names_it_until_there_is_room_again(
    model_folder: Path, small_disk: SmallDisk, nats_common: CommonSettings, bus: Bus
) -> None:
    """The gateway's own disk, where its outbox is."""
    async with running_gateway(
        nats_common, bus, model_folder, ScriptedWorker(bus), outbox_dir=small_disk.path / "outbox"
    ) as running:
        health = running.gateway.health
        assert (await running.chat(max_tokens=2)).status_code == 200
        small_disk.fill()
        async with asyncio.timeout(60):
            while (refused := await running.chat(max_tokens=2)).status_code == 200:
                pass
        assert refused.status_code == 503
        assert "No space left on device" in refused.text
        assert "PAGODA_GATEWAY_OUTBOX_DIR" in refused.text
        assert refused.headers["retry-after"]
        detail = health.report()["components"]["usage log"]
        assert not detail["ready"]
        assert "make room" in detail["detail"]

        small_disk.make_room()
        async with asyncio.timeout(60):
            while not health.report()["components"]["usage log"]["ready"]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        answer = await running.chat(max_tokens=2)
        assert answer.status_code == 200
        assert (await running.receipt(answer))["status"] == "closed"


async def test_an_outbox_over_its_budget_refuses_what_opens_until_it_is_sent(
    tmp_path: Path, own_nats: Server
) -> None:
    common = settings_for(own_nats, home=tmp_path)
    async with (
        Bus.connect(common, name="gateway") as bus,
        sending(bus, tmp_path, "g", is_sending=False, max_bytes=200) as (log, outbox),
    ):
        while outbox.num_bytes < 200:
            await log.open(opened("a"))
        with pytest.raises(UnavailableError, match="PAGODA_GATEWAY_OUTBOX_BYTES"):
            await log.open(opened("b"))
        await log.close(closed("a"))  # whoever was let in has a place for its end


async def had(running: Applier) -> list[tuple[str, int, int]]:
    """Return what is said of the request `had`: by whom, of which sequence, tokens."""
    rows = (await running.sequences.of_requests(["had"])).get("had", [])
    return [(row["role"], row["sequence_index"], row["published_tokens"]) for row in rows]


async def test_what_a_dead_gateway_left_is_adopted_once(tmp_path: Path, own_nats: Server) -> None:
    common = settings_for(own_nats, home=tmp_path)
    root = tmp_path / "outbox"
    async with Bus.connect(common, name="gateway") as bus, running_applier(common) as running:
        async with sending(bus, root, "dead", is_sending=False) as (log, outbox):
            for number in range(50):
                await log.open(opened(str(number)))
                await log.close(closed(str(number)))
            deliveries = deliveries_in(outbox.folder)
            assert deliveries is not None
            for index in range(RECORDS_TOGETHER + 1):
                slot = deliveries.begin("had", index)
                assert slot is not None
                slot.note(index)
        assert (root / "dead").exists()  # not sent: kept
        (root / "a-bad-one").mkdir()
        (root / "a-bad-one" / "lock").mkdir()
        async with sending(bus, root, "one"), sending(bus, root, "two"), asyncio.timeout(60):
            while (await running.ledger.totals("t")) != (250, 350):
                await running.ledger.wait_applied(0.2)
            while (root / "dead").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            wanted = [("gateway", index, index) for index in range(RECORDS_TOGETHER + 1)]
            while await had(running) != wanted:
                await running.ledger.wait_applied(0.2)
        assert [folder.name for folder in root.iterdir()] == ["a-bad-one"]


async def test_a_folder_that_was_half_deleted_keeps_nobody_waiting(
    tmp_path: Path, own_nats: Server
) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    (folder / "adopted").touch()  # whoever deleted it ended before this was gone
    tasks = BackgroundTasks()
    async with (
        Bus.connect(settings_for(own_nats, home=tmp_path), name="gateway") as bus,
        sending(bus, tmp_path, "one", is_sending=False) as (_, outbox),
        asyncio.timeout(30),
    ):
        own = Forwarder(bus, outbox, tmp_path, timeout_seconds=2, unix_clock=time.time)
        tasks.start(own.adopt_forever())
        await own.until_sent()
        await tasks.close()


async def test_requests_flow_while_jetstream_is_not_there_at_all(
    tmp_path: Path, own_nats: Server
) -> None:
    common = settings_for(own_nats, home=tmp_path)
    async with (
        Bus.connect(common, name="gateway") as bus,
        sending(bus, tmp_path / "outbox", "g") as (log, outbox),
    ):
        await ensure_usage_stream(bus, 1 << 20)
        await log.open(opened("a"))
        await outbox.is_drained.wait()
        own_nats.stop(kill=True)
        async with asyncio.timeout(60):
            await log.close(closed("a"))
            await log.open(opened("b"))
            await log.close(closed("b"))
        assert not outbox.is_drained.is_set()
        own_nats.start()
        async with asyncio.timeout(60):
            await outbox.is_drained.wait()
        async with running_applier(common) as running, asyncio.timeout(60):
            while (await running.ledger.totals("t")) != (10, 14):
                await running.ledger.wait_applied(0.2)


async def test_an_applier_that_may_not_write_says_so_before_a_record_comes(
    tmp_path: Path, own_nats: Server, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier, "LOOK_SECONDS", 0.05)
    health, url = Health(), postgres.new_database()
    async with open_database(url):
        pass  # its tables are made: who may only read is not asked to
    postgres.set_read_only(url, True)
    async with (
        Bus.connect(settings_for(own_nats, home=tmp_path), name="applier") as bus,
        open_database(url) as database,
        Applier(bus, database, health).running(GatewaySettings()),
    ):
        state = health.report()["components"]["ledger"]
        assert not state["ready"]
        assert "the database takes no writes" in state["detail"]
        postgres.set_read_only(url, False)
        async with asyncio.timeout(60):
            while not health.is_ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_settings_say_where_the_outbox_is(tmp_path: Path) -> None:
    assert GatewaySettings().outbox_folder(tmp_path) == tmp_path / "outbox"
    given = GatewaySettings(outbox_dir=tmp_path / "elsewhere")
    assert given.outbox_folder(tmp_path) == tmp_path / "elsewhere"
