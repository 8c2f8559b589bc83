"""KV that goes from one process's pool to another's: producer and consumer are processes."""

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import AsyncIterator

import pytest
from support.kv_pools import make_cache, maps_of
from support.kv_process import EPOCH, SECONDS, SOURCE_IDS, Consumer, Producer, Remote

from pagoda_engine.cache import peer_pool
from pagoda_engine.cache.peer_pool import PeerPoolError, open_peer_pool
from pagoda_engine.cache.shared_memory import SharedMemoryError
from pagoda_runtime.identity import host_id
from pagoda_worker.errors import PushError
from pagoda_worker.kv_transfer.leases import Lease, LeaseOutcome, Settlement

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("device", ["synchronous"], indirect=True),  # no engine here
]

SOURCE = make_cache()


@pytest.fixture
async def producer() -> AsyncIterator[Remote]:
    async with Remote.run("producer") as remote:
        yield remote


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    async with Consumer().served() as consumer:
        yield consumer


async def settled(lease: Lease) -> Settlement:
    async with asyncio.timeout(SECONDS):
        return await asyncio.shield(lease.settled)


async def begin(producer: Remote, consumer: Consumer) -> Lease:
    lease = consumer.promise()
    await producer.do("push", lease_id="lease-1", endpoint=consumer.endpoint)
    return lease


async def test_blocks_are_read_from_the_producers_pool(
    producer: Remote, consumer: Consumer
) -> None:
    lease = await begin(producer, consumer)
    await producer.do("send", first=0, end=3)
    await producer.do("send", first=3, end=4)

    summary = await producer.do("finish")

    assert summary == {"num_blocks": 4, "bad_blocks": []}
    settlement = await settled(lease)
    assert settlement.outcome is LeaseOutcome.RECEIVED
    assert settlement.num_valid_blocks == 4
    assert lease.transport == "shared memory"
    assert lease.num_received_bytes == 4 * SOURCE.block_bytes
    assert consumer.num_equal(SOURCE) == 4


async def test_blocks_come_layer_by_layer(producer: Remote, consumer: Consumer) -> None:
    lease = await begin(producer, consumer)
    for layers in ([2, 3], [0, 1], [0, 1], [1, 2]):
        await producer.do("send", first=0, end=4, layers=layers)

    assert await producer.do("finish") == {"num_blocks": 4, "bad_blocks": []}

    assert (await settled(lease)).num_valid_blocks == 4
    assert consumer.num_equal(SOURCE) == 4


async def test_missing_layer_makes_a_block_bad(producer: Remote, consumer: Consumer) -> None:
    lease = await begin(producer, consumer)
    await producer.do("send", first=0, end=4, layers=[0, 2])
    await producer.do("send", first=0, end=2, layers=[2, 3])
    await producer.do("send", first=3, end=4, layers=[2, 3])

    assert await producer.do("finish") == {"num_blocks": 4, "bad_blocks": [2]}

    assert (await settled(lease)).num_valid_blocks == 2


@pytest.mark.parametrize("layers", [None, [1, 3]])
async def test_byte_that_changed_after_the_digest_makes_a_block_bad(
    producer: Remote, consumer: Consumer, layers: list[int] | None
) -> None:
    lease = await begin(producer, consumer)
    if layers is not None:
        await producer.do("send", first=0, end=4, layers=[1, 3])
        layers = [0, 1]
    await producer.do("damage", block_id=0)  # logical block 2, first layer

    await producer.do("send", first=0, end=4, layers=layers)

    assert (await producer.do("finish"))["bad_blocks"] == [2]
    assert (await settled(lease)).num_valid_blocks == 2
    assert consumer.bad_blocks == [1]
    assert not consumer.cache.tensor[:, 0, 0].any()


async def test_push_of_an_older_epoch_opens_nothing(producer: Remote, consumer: Consumer) -> None:
    handle = (await producer.do("handle")).encode()
    consumer.promise()
    await producer.do("push", lease_id="lease-1", endpoint=consumer.endpoint, epoch="older")

    with pytest.raises(PushError, match="epoch 'older' is not mine"):
        await producer.do("finish")

    assert maps_of(handle) == []
    assert len(consumer.leases) == 1


async def test_killed_producer_leaves_what_it_sent_and_no_mapping(
    producer: Remote, consumer: Consumer
) -> None:
    handle = (await producer.do("handle")).encode()
    lease = await begin(producer, consumer)
    await producer.do("send", first=0, end=3)
    await producer.do("send", first=3, end=4, layers=[0, 2])
    await consumer.received(lease, 3 * SOURCE.block_bytes + SOURCE.block_bytes * 2 // 3)
    assert len(maps_of(handle)) == 1

    await producer.kill()

    settlement = await settled(lease)
    assert settlement.outcome is LeaseOutcome.BROKEN
    assert settlement.num_valid_blocks == 3
    assert consumer.num_equal(SOURCE) == 3
    consumer.lose_producer()
    assert maps_of(handle) == []


async def test_lost_producer_that_still_pushes_is_refused(
    producer: Remote, consumer: Consumer
) -> None:
    handle = (await producer.do("handle")).encode()
    lease = await begin(producer, consumer)
    await producer.do("send", first=0, end=2)
    await consumer.received(lease, 2 * SOURCE.block_bytes)

    consumer.lose_producer()
    assert (await settled(lease)).outcome is LeaseOutcome.PRODUCER_LOST
    with contextlib.suppress(PushError):  # it may learn of it here, or below
        await producer.do("send", first=2, end=4)
    with pytest.raises(PushError):
        await producer.do("finish")

    assert maps_of(handle) == []
    assert consumer.num_equal(SOURCE) == 2
    assert not consumer.cache.tensor[:, :, [0, 2]].any()


async def test_producer_killed_before_its_pool_was_opened(
    producer: Remote, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_too_late(handle: bytes, *, num_bytes: int) -> None:
        producer.process.kill()
        raise SharedMemoryError("its process has ended")

    monkeypatch.setattr(peer_pool, "open_shared_memory", open_too_late)
    lease = await begin(producer, consumer)
    with pytest.raises(json.JSONDecodeError):  # no answer
        await producer.do("send", first=0, end=2)

    settlement = await settled(lease)
    assert settlement.outcome is LeaseOutcome.BROKEN
    assert settlement.num_valid_blocks == 0


async def test_consumer_that_cannot_open_the_pool_gets_each_block_once(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_nowhere(handle: bytes, *, num_bytes: int) -> None:
        raise SharedMemoryError("another container")

    monkeypatch.setattr(peer_pool, "open_shared_memory", open_nowhere)
    producer = Producer()
    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    await producer.send(0, 3)
    await consumer.received(lease, 3 * SOURCE.block_bytes)  # not held back for its trailer
    await producer.send(3, 4)

    assert await producer.finish() == {"num_blocks": 4, "bad_blocks": ()}

    assert lease.transport == "inline"
    assert lease.num_received_bytes == 4 * SOURCE.block_bytes
    assert consumer.num_equal(SOURCE) == 4
    await producer.close()


async def test_pool_that_failed_is_opened_anew(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PeerPoolError("the connection is gone")

    producer = Producer()
    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    with monkeypatch.context() as patch:
        patch.setattr(peer_pool.SharedMemoryPool, "read", fail)
        await producer.send(0, 4)
        settlement = await settled(lease)
    assert settlement.outcome is LeaseOutcome.BROKEN
    assert settlement.reason == "the producer's pool: the connection is gone"
    handle = producer.export.handle.memory
    assert len(maps_of(handle)) == 1  # the producer's own

    lease = consumer.promise("lease-2")
    await producer.push("lease-2", consumer.endpoint)
    await producer.send(0, 4)
    await producer.finish()
    assert (await settled(lease)).num_valid_blocks == 4
    await producer.close()


async def test_error_of_the_consumer_names_itself(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(consumer.cache, "write_blocks", fail)
    producer = Producer()
    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    with contextlib.suppress(PushError):  # it may learn of it here, or below
        await producer.send(0, 4)
    with pytest.raises(PushError):
        await producer.finish()

    settlement = await settled(lease)
    assert settlement.outcome is LeaseOutcome.BROKEN
    assert settlement.reason == "the consumer failed: RuntimeError: the device is gone"
    assert "lease lease-1: its blocks could not be taken" in caplog.text
    await producer.close()


async def test_trailer_after_the_lease_was_settled_is_refused(consumer: Consumer) -> None:
    producer = Producer()
    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    await producer.send(0, 4)
    await consumer.received(lease, 4 * SOURCE.block_bytes)
    consumer.leases.settle(lease, LeaseOutcome.EXPIRED)

    with pytest.raises(PushError, match="lease-1 is void"):
        await producer.finish()
    await producer.close()


@pytest.mark.parametrize("is_inline", [False, True])
async def test_what_a_gpu_would_do_on_both_sides(is_inline: bool) -> None:
    producer = Producer(as_gpu=True)
    producer.producer.pool = None if is_inline else producer.export
    async with Consumer(as_gpu=True).served() as consumer:
        lease = consumer.promise()
        await producer.push("lease-1", consumer.endpoint)
        await producer.send(0, 3, [0, 1])
        await producer.send(0, 3, [1, 3])
        await producer.damage(1)
        await producer.send(3, 4)

        assert await producer.finish() == {"num_blocks": 4, "bad_blocks": () if is_inline else (3,)}

        assert lease.transport == ("inline" if is_inline else "shared memory")
        assert consumer.num_equal(make_cache()) == (4 if is_inline else 3)
    await producer.close()


@pytest.mark.parametrize("is_inline", [False, True])
async def test_blocks_are_not_read_before_they_are_written(
    consumer: Consumer, is_inline: bool
) -> None:
    producer = Producer()
    producer.producer.pool = None if is_inline else producer.export
    computed, producer.cache.tensor[:] = producer.cache.tensor.clone(), 0
    may_write = threading.Event()

    def wait() -> None:
        assert may_write.wait(SECONDS)
        producer.cache.tensor[:] = computed

    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    sending = asyncio.create_task(producer.pushing.send(0, SOURCE_IDS, wait=wait))
    await asyncio.sleep(0)
    assert lease.num_received_bytes == 0
    may_write.set()
    await sending
    await producer.finish()

    assert consumer.num_equal(SOURCE) == 4
    await producer.close()


async def test_pushes_that_wait_for_the_device_hold_up_no_other(consumer: Consumer) -> None:
    producer = Producer()
    may_write = threading.Event()
    sending = []
    for lease_id in ("lease-2", "lease-3", "lease-4"):
        consumer.promise(lease_id)
        await producer.push(lease_id, consumer.endpoint)
        sending.append(
            asyncio.create_task(
                producer.pushing.send(0, SOURCE_IDS, wait=lambda: may_write.wait(SECONDS))
            )
        )
    await asyncio.sleep(0)
    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    await producer.send(0, 4)
    await producer.finish()

    assert (await settled(lease)).num_valid_blocks == 4
    assert not any(task.done() for task in sending)
    may_write.set()
    await asyncio.gather(*sending)
    await producer.close()


@pytest.mark.parametrize(
    ("host", "pool_host", "transport"),
    [
        ("another", None, "inline"),
        ("another", "", "shared memory"),  # such a pool can be read from everywhere
        ("", None, "shared memory"),
        (host_id(), None, "shared memory"),
    ],
)
async def test_consumer_on_another_host_gets_payloads_at_once(
    consumer: Consumer, host: str, pool_host: str | None, transport: str
) -> None:
    producer = Producer()
    if pool_host is not None:
        producer.export.handle = dataclasses.replace(producer.export.handle, host=pool_host)
    producer.producer.hear_of(EPOCH, host)
    lease = consumer.promise()
    await producer.push("lease-1", consumer.endpoint)
    await producer.send(0, 4)

    assert await producer.finish() == {"num_blocks": 4, "bad_blocks": ()}

    assert lease.transport == transport
    await producer.close()


async def test_successor_at_the_same_port_is_reached_at_once() -> None:
    producer = Producer()
    async with Consumer().served() as dead:
        endpoint = dead.endpoint
    await producer.push("lease-1", endpoint, "of the dead")
    with pytest.raises(PushError, match="UNAVAILABLE"):
        await producer.send(0, 4)  # its channel rests now, before it tries to connect again

    async with Consumer().served(int(endpoint.rpartition(":")[2])) as consumer:
        lease = consumer.promise()
        await producer.push("lease-1", endpoint)
        await producer.send(0, 4)
        assert (await producer.finish())["num_blocks"] == 4
        assert (await settled(lease)).outcome is LeaseOutcome.RECEIVED
        await producer.close()


async def test_killed_consumer_ends_the_push_and_holds_nothing() -> None:
    producer = Producer()
    memory = producer.export.handle.memory
    async with Remote.run("consumer") as consumer:
        await producer.push("lease-1", await consumer.do("promise"))
        await producer.send(0, 2)
        await consumer.do("received", num_bytes=2 * SOURCE.block_bytes)
        assert len(maps_of(memory, consumer.process.pid)) == 1

        await consumer.kill()

        with pytest.raises(PushError):
            await producer.finish()
    await producer.close()
    assert len(maps_of(memory)) == 1
    with pytest.raises(PeerPoolError, match="No such file"):
        open_peer_pool(producer.export.handle, SOURCE)
