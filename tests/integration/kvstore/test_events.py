"""KvEvents through real JetStream."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry.context import Context
from support.stored_blocks import make_block, make_hash

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_kvstore.app import open_store
from pagoda_kvstore.config import KvstoreSettings
from pagoda_kvstore.held_blocks import HeldBlocks
from pagoda_kvstore.store import BlockStore
from pagoda_runtime import identity
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.kv_events import KvEventPublisher

pytestmark = pytest.mark.integration

SETTINGS = KvstoreSettings(cpu_bytes=4_000, nvme_bytes=40_000, segment_bytes=20_000)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlockStore]:
    async with open_store(SETTINGS, tmp_path / "nvme") as (opened, _):
        yield opened


@pytest_asyncio.fixture
async def events(bus: Bus) -> AsyncIterator[asyncio.Queue[kv_event_pb2.KvEvent]]:
    stream = subjects.KV_EVENTS_STREAM
    await bus.ensure_stream(
        stream,
        [subjects.KV_EVENTS_ALL],
        max_bytes=16 << 20,
        discard_old=True,
    )
    queue: asyncio.Queue[kv_event_pb2.KvEvent] = asyncio.Queue()

    async def take(batch: list[kv_event_pb2.KvEvent]) -> None:
        for event in batch:
            queue.put_nowait(event)

    subscription = await bus.consume(
        stream, "test", kv_event_pb2.KvEvent, take, batch=16, in_order=True
    )
    yield queue
    await subscription.unsubscribe()


def make_publisher(bus: Bus, store: BlockStore, now: list[float]) -> KvEventPublisher:
    return KvEventPublisher(
        bus,
        HeldBlocks(store),
        worker_id=identity.new_worker_id("kvstore"),  # message ids are known to the server
        epoch="e1",
        interval_seconds=0.01,
        snapshot_interval_seconds=60.0,
        clock=lambda: now[0],
    )


async def test_snapshot_then_changes_then_a_snapshot_when_due(
    bus: Bus, store: BlockStore, events: asyncio.Queue[kv_event_pb2.KvEvent]
) -> None:
    now = [0.0]
    publisher = make_publisher(bus, store, now)
    store.put(make_block("a"))
    await asyncio.to_thread(store.writes.flush, 10.0)
    await publisher.publish_once()
    store.put(make_block("b"))
    store.put(make_block("c"))
    await asyncio.to_thread(store.writes.flush, 10.0)
    await publisher.publish_once()
    now[0] = 61.0
    await publisher.publish_once()
    async with asyncio.timeout(60):
        received = [await events.get() for _ in range(6)]
    cpu, nvme = kv_event_pb2.TIER_CPU, kv_event_pb2.TIER_NVME
    assert [event.sequence for event in received] == [1, 2, 3, 4, 5, 6]
    assert [event.tier for event in received] == [cpu, nvme] * 3
    assert [event.is_snapshot for event in received] == [True, True, False, False, True, True]
    assert received[0].stored == make_hash("a")
    assert received[2].stored == make_hash("b") + make_hash("c")
    assert received[2].evicted == make_hash("a")
    assert received[3].stored == make_hash("b") + make_hash("c")
    assert received[5].stored == make_hash("a") + make_hash("b") + make_hash("c")


async def test_snapshot_of_many_parts_is_published_when_asked_for(
    bus: Bus,
    store: BlockStore,
    events: asyncio.Queue[kv_event_pb2.KvEvent],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pagoda_runtime.messaging.kv_events.MAX_HASHES", 1)
    now = [0.0]
    publisher = make_publisher(bus, store, now)
    for name in "abc":
        store.put(make_block(name))
    await asyncio.to_thread(store.writes.flush, 10.0)
    await publisher.publish_once()
    request = kv_event_pb2.KvSnapshotRequest(epoch="e1")
    await publisher.on_snapshot_request(request, Context())
    await publisher.publish_once()  # too soon after the other one
    now[0] = 5.0
    await publisher.publish_once()
    async with asyncio.timeout(60):
        received = [await events.get() for _ in range(10)]
    cpu, nvme = kv_event_pb2.TIER_CPU, kv_event_pb2.TIER_NVME
    parts = [(e.tier, e.is_snapshot, e.snapshot_part, e.num_snapshot_parts) for e in received]
    assert parts[:5] == parts[5:]
    assert parts[:5] == [
        (cpu, True, 1, 2),
        (cpu, False, 2, 2),
        (nvme, True, 1, 3),
        (nvme, False, 2, 3),
        (nvme, False, 3, 3),
    ]


async def test_changes_are_published_by_themselves(
    bus: Bus, store: BlockStore, events: asyncio.Queue[kv_event_pb2.KvEvent]
) -> None:
    publisher = make_publisher(bus, store, [0.0])
    loop = asyncio.get_running_loop()
    store.changes.on_change = lambda: loop.call_soon_threadsafe(publisher.wake)
    task = asyncio.create_task(publisher.run())
    store.put(make_block("z"))
    seen = b""
    async with asyncio.timeout(60):
        while make_hash("z") not in seen:
            seen += (await events.get()).stored
    task.cancel()
    await asyncio.wait([task])
