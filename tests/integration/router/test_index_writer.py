"""KV events into a real Redis, and rebuilding it through a real JetStream."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from integration.router.index_events import CPU, NVME, hashes, make_event
from redis.asyncio import Redis
from unit.router.workers.test_registry import make_status

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_router.config import RouterSettings
from pagoda_router.index import redis_keys
from pagoda_router.index.redis_keys import IndexTier
from pagoda_router.index.writer import DURABLE, IndexWriter
from pagoda_router.workers.pending_load import PendingLoads
from pagoda_router.workers.registry import WorkerRegistry
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

pytestmark = pytest.mark.integration


def make_writer(client: Redis, bus: Bus) -> tuple[IndexWriter, WorkerRegistry]:
    pending_loads = PendingLoads(settle_seconds=0.1, max_seconds=1.0)
    registry = WorkerRegistry(RouterSettings(), pending_loads, lambda *life: writer.retire(*life))
    writer = IndexWriter(client, bus, registry, ttl_seconds=100, check_seconds=60.0)
    return writer, registry


async def members(client: Redis, tier: IndexTier = IndexTier.DEVICE, epoch: str = "e1") -> set[int]:
    found = await client.smembers(redis_keys.blocks("w", epoch, tier))
    return {int.from_bytes(member, "big") for member in found}


async def test_stored_then_evicted(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    await writer.apply([make_event([1, 2, 3]), make_event([4, 5], [2, 5])])
    assert await members(client) == {1, 3, 4}


async def test_applying_a_batch_twice_changes_nothing(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    batch = [make_event([1, 2]), make_event((), [1]), make_event([1]), make_event((), [2])]
    await writer.apply(batch)
    once = await members(client)
    await writer.apply(batch)
    assert await members(client) == once == {1}


async def test_snapshot_replaces_its_tier_only(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    await writer.apply([make_event([1, 2], tier=CPU), make_event([1, 2], tier=NVME)])
    await writer.apply([make_event([3], tier=CPU, is_snapshot=True)])
    assert await members(client, IndexTier.CPU) == {3}
    assert await members(client, IndexTier.NVME) == {1, 2}
    await writer.apply([make_event([], tier=CPU, is_snapshot=True)])
    assert await members(client, IndexTier.CPU) == set()


async def test_large_events_are_applied_whole(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    await writer.apply([make_event(range(16_384))])
    assert len(await members(client)) == 16_384


async def test_older_epoch_is_ignored_and_its_sets_deleted(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    await client.set(redis_keys.MARKER, "1")
    registry.on_status("w", make_status("w", "e1"))
    await writer.apply([make_event([1], epoch="e1")])
    registry.on_status("w", make_status("w", "e2"))
    await writer.apply([make_event([2], epoch="e1"), make_event([3], epoch="e2")])
    assert await members(client, epoch="e1") == {1}
    await writer.maintain()
    assert await members(client, epoch="e1") == set()
    assert await members(client, epoch="e2") == {3}


async def test_newer_epoch_than_the_last_heartbeat_is_taken(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    registry.on_status("w", make_status("w", "e1"))
    await writer.apply([make_event([1], epoch="e2")])
    assert await members(client, epoch="e2") == {1}


async def test_sets_expire_unless_their_worker_is_alive(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    await client.set(redis_keys.MARKER, "1")
    await writer.apply([make_event([1])])
    key = redis_keys.blocks("w", "e1", IndexTier.DEVICE)
    assert 0 < await client.ttl(key) <= 100
    await client.expire(key, 5)
    await writer.maintain()
    assert await client.ttl(key) <= 5
    registry.on_status("w", make_status("w", "e1"))
    await writer.maintain()
    assert await client.ttl(key) > 90


@pytest_asyncio.fixture
async def consumed(
    client: Redis, bus: Bus
) -> AsyncIterator[tuple[IndexWriter, asyncio.Queue[kv_event_pb2.KvEvent]]]:
    """A writer that consumes the stream, and a queue that hears of each batch."""
    writer, _ = make_writer(client, bus)
    applied: asyncio.Queue[kv_event_pb2.KvEvent] = asyncio.Queue()

    async def apply(events: Sequence[kv_event_pb2.KvEvent]) -> None:
        await writer.apply(events)
        for event in events:
            applied.put_nowait(event)

    await bus.ensure_stream(
        subjects.KV_EVENTS_STREAM,
        [subjects.KV_EVENTS_ALL],
        max_bytes=16 << 20,
        max_age_seconds=None,
        discard_old=True,
    )
    subscription = await bus.consume(
        subjects.KV_EVENTS_STREAM, DURABLE, kv_event_pb2.KvEvent, apply, batch=64, in_order=True
    )
    yield writer, applied
    await subscription.unsubscribe()


async def test_wiped_redis_is_rebuilt_from_the_stream(
    client: Redis, bus: Bus, consumed: tuple[IndexWriter, asyncio.Queue[kv_event_pb2.KvEvent]]
) -> None:
    writer, applied = consumed
    history = [make_event([1, 2, 3]), make_event([4], [1]), make_event([5])]
    for number, event in enumerate(history):
        await bus.publish_durable(
            subjects.kv_events("w"), event, message_id=f"wipe:{number}", timeout_seconds=5
        )
    async with asyncio.timeout(20):
        for _ in history:
            await applied.get()
    assert await members(client) == {2, 3, 4, 5}
    await client.flushall()
    await writer.maintain()
    async with asyncio.timeout(20):
        for _ in history:
            await applied.get()
    assert await members(client) == {2, 3, 4, 5}
    assert await client.exists(redis_keys.MARKER)
    await writer.maintain()
    assert applied.empty()


async def test_one_router_rebuilds(
    client: Redis, bus: Bus, consumed: tuple[IndexWriter, asyncio.Queue[kv_event_pb2.KvEvent]]
) -> None:
    writer, _ = consumed
    await client.set(redis_keys.REBUILD_LOCK, "another router")
    await writer.maintain()
    assert not await client.exists(redis_keys.MARKER)


async def test_hashes_are_stored_as_they_are(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    await writer.apply([make_event([7])])
    key = redis_keys.blocks("w", "e1", IndexTier.DEVICE)
    assert await client.smembers(key) == set(hashes([7]))
