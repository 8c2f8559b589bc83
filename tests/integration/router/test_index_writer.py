"""KV events into a real Redis, and asking for what it lacks."""

import asyncio
import time
from collections.abc import Callable

import pytest
from integration.router.index_events import CPU, NVME, Source, hashes, make_event
from redis.asyncio import Redis
from redis.exceptions import RedisError
from unit.router.workers.test_registry import make_status

from pagoda.rpc.v1 import status_pb2
from pagoda_router import metrics
from pagoda_router.config import RouterSettings
from pagoda_router.index import redis_keys
from pagoda_router.index.redis_keys import WHOLE, IndexTier
from pagoda_router.index.writer import BYTES_PER_BLOCK, IndexWriter
from pagoda_router.workers.pending_load import PendingLoads
from pagoda_router.workers.registry import WorkerRegistry
from pagoda_runtime.messaging.bus import Bus

pytestmark = pytest.mark.integration


def make_writer(
    client: Redis,
    bus: Bus,
    *,
    max_bytes: int = 64 << 20,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[IndexWriter, WorkerRegistry]:
    pending_loads = PendingLoads(settle_seconds=0.1, max_seconds=1.0)
    registry = WorkerRegistry(RouterSettings(), pending_loads, lambda *life: writer.retire(*life))
    writer = IndexWriter(
        client,
        bus,
        registry,
        ttl_seconds=100,
        check_seconds=60.0,
        max_bytes=max_bytes,
        clock=clock,
    )
    return writer, registry


async def members(client: Redis, tier: IndexTier = IndexTier.DEVICE, epoch: str = "e1") -> set[int]:
    found = await client.smembers(redis_keys.blocks("w", epoch, tier))
    return {int.from_bytes(member, "big") for member in found - {WHOLE.encode()}}


async def is_whole(client: Redis, tier: IndexTier = IndexTier.DEVICE) -> bool:
    return bool(await client.sismember(redis_keys.blocks("w", "e1", tier), WHOLE))


async def num_asked(writer: IndexWriter) -> float:
    """Maintain once and return how many workers were asked for a snapshot."""
    before = metrics.SNAPSHOTS_ASKED._value.get()
    await writer.maintain()
    return metrics.SNAPSHOTS_ASKED._value.get() - before


async def test_stored_then_evicted(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    source = Source()
    await writer.apply([source.event([1, 2, 3]), source.event([4, 5], [2, 5])])
    assert await members(client) == {1, 3, 4}


async def test_applying_a_batch_twice_changes_nothing(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    source = Source()
    batch = [source.event([1, 2]), source.event((), [1]), source.event([1]), source.event((), [2])]
    await writer.apply(batch)
    once = await members(client)
    await writer.apply(batch)
    assert await members(client) == once == {1}


async def test_snapshot_replaces_its_tier_only(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    source = Source()
    await writer.apply([source.event([1, 2], tier=CPU), source.event([1, 2], tier=NVME)])
    await writer.apply(source.snapshot([3], tier=CPU))
    assert await members(client, IndexTier.CPU) == {3}
    assert await members(client, IndexTier.NVME) == {1, 2}
    await writer.apply(source.snapshot([], tier=CPU))
    assert await members(client, IndexTier.CPU) == set()
    assert await is_whole(client, IndexTier.CPU)
    assert not await is_whole(client, IndexTier.NVME)


async def test_readers_never_see_half_of_a_snapshot(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    source = Source()
    await writer.apply(source.snapshot([1, 2]))
    *parts, last = source.snapshot([1], [3], [4])
    for event in parts:
        await writer.apply([event])
        assert await members(client) == {1, 2}
    await writer.apply([last])
    assert await members(client) == {1, 3, 4}
    assert await is_whole(client)


async def test_snapshot_that_lacks_a_part_is_dropped_and_asked_for_again(
    client: Redis, bus: Bus
) -> None:
    writer, registry = make_writer(client, bus)
    registry.on_status("w", make_status("w", "e1"))
    source = Source()
    await writer.apply(source.snapshot([1]))
    assert await num_asked(writer) == 0
    first, _, third = source.snapshot([1], [2], [3])
    await writer.apply([first])
    await writer.apply([third])
    assert await members(client) == {1}
    assert await num_asked(writer) == 1
    await writer.apply(source.snapshot([1], [2], [3]))
    assert await members(client) == {1, 2, 3}
    assert await is_whole(client)


async def test_large_events_are_applied_whole(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    await writer.apply([make_event(range(16_384))])
    assert len(await members(client)) == 16_384


async def test_older_epoch_is_ignored_and_its_sets_deleted(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    old, new = Source(epoch="e1"), Source(epoch="e2")
    registry.on_status("w", make_status("w", "e1"))
    await writer.apply([old.event([1])])
    registry.on_status("w", make_status("w", "e2"))
    await writer.apply([old.event([2]), new.event([3])])
    assert await members(client, epoch="e1") == {1}
    await writer.maintain()
    assert await members(client, epoch="e1") == set()
    assert await members(client, epoch="e2") == {3}


async def test_newer_epoch_than_the_last_heartbeat_is_taken(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    registry.on_status("w", make_status("w", "e1"))
    await writer.apply([make_event([1], epoch="e2")])
    assert await members(client, epoch="e2") == {1}


async def test_every_key_expires_unless_its_worker_is_alive(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    source = Source()
    await writer.apply([*source.snapshot([1]), source.snapshot([2], [3])[0]])
    keys = [key async for key in client.scan_iter()]
    assert len(keys) == 3  # the set, the snapshot that is coming in, the sequence
    assert all([0 < await client.ttl(key) <= 100 for key in keys])
    key = redis_keys.blocks("w", "e1", IndexTier.DEVICE)
    await client.expire(key, 5)
    await writer.maintain()
    assert await client.ttl(key) <= 5
    registry.on_status("w", make_status("w", "e1"))
    await writer.maintain()
    assert await client.ttl(key) > 90


async def test_missing_event_is_noticed_and_the_worker_asked_once_by_all_routers(
    client: Redis, bus: Bus
) -> None:
    writer, registry = make_writer(client, bus)
    replica, replicas_registry = make_writer(client, bus)
    for each in (registry, replicas_registry):
        each.on_status("w", make_status("w", "e1"))
    source = Source()
    await writer.apply(source.snapshot([1, 2]))
    assert await num_asked(writer) == 0
    source.lose()
    await replica.apply([source.event([3])])
    assert await members(client) == {1, 2, 3}  # what is known is used meanwhile
    assert await num_asked(writer) + await num_asked(replica) == 1
    await writer.apply(source.snapshot([3]))
    assert await members(client) == {3}
    assert await is_whole(client)


async def test_stream_that_does_not_reach_back_is_a_gap(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    registry.on_status("w", make_status("w", "e1"))
    await writer.apply([make_event([7], sequence=1000)])
    assert await members(client) == {7}
    assert await num_asked(writer) == 1


async def test_gap_of_a_kvstore_concerns_both_tiers(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    status = make_status("w", "e1")
    status.role = status_pb2.ROLE_KVSTORE
    registry.on_status("w", status)
    source = Source()
    await writer.apply(source.snapshot([1], tier=CPU) + source.snapshot([2], tier=NVME))
    assert await num_asked(writer) == 0
    source.lose()
    await writer.apply([source.event([3], tier=CPU)])
    assert not await is_whole(client, IndexTier.NVME)
    await writer.apply(source.snapshot([3], tier=CPU) + source.snapshot([4], tier=NVME))
    assert await is_whole(client, IndexTier.CPU)
    assert await is_whole(client, IndexTier.NVME)


async def test_evicted_set_is_asked_for_again(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus)
    registry.on_status("w", make_status("w", "e1"))
    await writer.apply(Source().snapshot([1]))
    await client.delete(redis_keys.blocks("w", "e1", IndexTier.DEVICE))
    assert await num_asked(writer) == 1


async def test_index_keeps_to_its_budget_and_comes_back_whole(client: Redis, bus: Bus) -> None:
    writer, registry = make_writer(client, bus, max_bytes=1000 * BYTES_PER_BLOCK)
    registry.on_status("w", make_status("w", "e1"))
    source = Source()
    await writer.apply(source.snapshot(range(900)))
    before = metrics.EVENTS_FORGOTTEN._value.get()
    await writer.apply([source.event(range(900, 1100), range(500))])
    assert metrics.EVENTS_FORGOTTEN._value.get() - before == 1
    assert await members(client) == set(range(500, 900))  # evictions count, nobody waits
    assert await num_asked(writer) == 1  # there is room again
    await writer.apply(source.snapshot(range(500, 1000)))
    assert await members(client) == set(range(500, 1000))
    assert await num_asked(writer) == 0


async def test_redis_without_room_stalls_nobody_and_the_index_comes_back_whole(
    client: Redis, bus: Bus
) -> None:
    """Also under noeviction; counters of others, which have no time to live, stay."""
    now = 0.0
    writer, registry = make_writer(client, bus, clock=lambda: now)
    for name in ("w", "other"):
        registry.on_status(name, make_status(name, "e1"))
    source, other = Source(), Source("other")
    await client.set("counter", 1)
    await writer.apply(source.snapshot([1, 2]) + other.snapshot([9]))
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", used // 2)
    try:
        await writer.apply([source.event(range(100), [1])])
        await writer.apply([other.event((), [9])])
        assert await members(client) == {2}
        assert await client.get("counter") == b"1"
    finally:
        await client.config_set("maxmemory", 0)
    assert await num_asked(writer) == 0  # how many blocks there are says nothing of the room
    now += 10.0
    assert await num_asked(writer) == 2
    await writer.apply(source.snapshot(range(2, 100)) + other.snapshot([]))
    assert await members(client) == set(range(2, 100))
    assert await num_asked(writer) == 0


async def test_a_full_redis_takes_from_the_index_alone(client: Redis, bus: Bus) -> None:
    """The policy of `pagoda up` and of the containers."""
    writer, registry = make_writer(client, bus)
    registry.on_status("w", make_status("w", "e1"))
    await client.config_set("maxmemory-policy", "volatile-ttl")
    await client.set("counter", 1)
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", used + (4 << 20))
    try:
        for number in range(16):
            source = Source(f"gone-{number}")
            first = number * 20_000
            await writer.apply(source.snapshot(range(first, first + 16_000)))
        source = Source()
        await writer.apply(source.snapshot([1, 2]))
        assert await client.get("counter") == b"1"
        assert (await client.info("stats"))["evicted_keys"] > 0
    finally:
        await client.config_set("maxmemory", 0)
        await client.config_set("maxmemory-policy", "noeviction")
    if await num_asked(writer):
        await writer.apply(source.snapshot([1, 2]))
    assert await members(client) == {1, 2}


async def test_hashes_are_stored_as_they_are(client: Redis, bus: Bus) -> None:
    writer, _ = make_writer(client, bus)
    await writer.apply([make_event([7])])
    key = redis_keys.blocks("w", "e1", IndexTier.DEVICE)
    assert await client.smembers(key) == set(hashes([7]))


async def test_an_outage_is_said_once_and_again_when_it_is_another_one(
    client: Redis, bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer, _ = make_writer(client, bus)
    writer._check_seconds = 0.0
    outages = ["wrong password", "wrong password", "wrong password", "", "wrong password", "gone"]
    left = list(outages)

    async def maintain() -> None:
        if not left:
            raise asyncio.CancelledError
        if why := left.pop(0):
            raise RedisError(why)

    monkeypatch.setattr(writer, "maintain", maintain)
    with pytest.raises(asyncio.CancelledError):
        await writer.run()
    said = [record.getMessage().rsplit(": ", 1)[1] for record in caplog.records]
    assert said == ["wrong password", "wrong password", "gone"]
    assert writer.problem == "routing without prefix affinity: RedisError: gone"
