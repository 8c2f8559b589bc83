"""KV by NIXL between two processes, where it is installed: `pip install 'pagoda-worker[nixl]'`."""

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator

import pytest
import torch
from support.kv_pools import make_cache
from support.kv_process import SECONDS, Consumer, Producer, Remote
from support.prefill_process import WORKER_ID, prefill_process
from support.worker_cluster import Cluster

from pagoda_engine.cache.copy_lanes import NUM_LANES
from pagoda_engine.cache.peer_pool import PeerPoolError, PoolHandle, PoolKind, open_peer_pool
from pagoda_worker.errors import PushError
from pagoda_worker.kv_transfer import nixl_pool
from pagoda_worker.kv_transfer.leases import LeaseOutcome
from pagoda_worker.kv_transfer.nixl_pool import NixlExport, NixlReader

pytest.importorskip("nixl")
pytestmark = pytest.mark.integration

SOURCE = make_cache()


@pytest.fixture
async def producer() -> AsyncIterator[Remote]:
    async with Remote.run("nixl-producer") as remote:
        yield remote


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    async with Consumer().served() as consumer:
        yield consumer


def open_nixl(handle: PoolHandle, reader: NixlReader | None = None):
    return open_peer_pool(handle, SOURCE, {PoolKind.NIXL: (reader or NixlReader()).open})


async def handle_of(producer: Remote) -> PoolHandle:
    handle = await producer.do("nixl_handle")
    return PoolHandle(**handle | {"kind": PoolKind.NIXL, "memory": bytes.fromhex(handle["memory"])})


async def test_blocks_are_read_from_the_producers_pool(
    producer: Remote, consumer: Consumer
) -> None:
    lease = consumer.promise()
    await producer.do("push", lease_id="lease-1", endpoint=consumer.endpoint)
    await producer.do("send", first=0, end=4, layers=[1, 3])
    await producer.do("send", first=0, end=4, layers=[0, 1])

    assert await producer.do("finish") == {"num_blocks": 4, "bad_blocks": []}

    assert lease.transport == "NIXL"
    assert consumer.num_equal(SOURCE) == 4


async def test_tokens_equal_the_engine_alone(cluster: Cluster) -> None:
    prompts = [[seed * 7 + i for i in range(40)] for seed in range(1, 5)]
    decode = await cluster.start_decode("decode-1")
    async with prefill_process(cluster, kv_transfer="nixl", num_layer_groups=2):
        for prompt in prompts:
            answer = await cluster.generate("decode-1", prompt, prefill_worker_id=WORKER_ID)
            assert (await answer.finished()).token_ids == cluster.alone([prompt])[0]
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == len(prompts)


async def test_byte_that_changed_after_the_digest_makes_a_block_bad(
    producer: Remote, consumer: Consumer
) -> None:
    lease = consumer.promise()
    await producer.do("push", lease_id="lease-1", endpoint=consumer.endpoint)
    await producer.do("damage", block_id=0)
    await producer.do("send", first=0, end=4)

    assert (await producer.do("finish"))["bad_blocks"] == [2]
    assert (await lease.settled).num_valid_blocks == 2


async def test_killed_producer_leaves_what_it_sent(producer: Remote, consumer: Consumer) -> None:
    lease = consumer.promise()
    await producer.do("push", lease_id="lease-1", endpoint=consumer.endpoint)
    await producer.do("send", first=0, end=3)
    await consumer.received(lease, 3 * SOURCE.block_bytes)

    await producer.kill()

    async with asyncio.timeout(SECONDS):
        settlement = await asyncio.shield(lease.settled)
    assert settlement.outcome is LeaseOutcome.BROKEN
    assert settlement.num_valid_blocks == 3
    consumer.lose_producer()


async def test_killed_consumer_ends_the_push() -> None:
    producer = Producer(by_nixl=True)
    async with Remote.run("consumer") as consumer:
        await producer.push("lease-1", await consumer.do("promise"))
        await producer.send(0, 2)
        await consumer.do("received", num_bytes=2 * SOURCE.block_bytes)
        await consumer.kill()
        with pytest.raises(PushError):
            await producer.finish()
    await producer.close()


def test_handle_of_another_layout_or_of_nonsense_is_refused() -> None:
    export = NixlExport(SOURCE)
    for change in ({"layout": "other"}, {"memory": b"x"}, {"memory": bytes(40)}):
        with pytest.raises(PeerPoolError):
            open_nixl(dataclasses.replace(export.handle, **change))
    export.close()


async def test_read_of_a_dead_owner_fails(producer: Remote) -> None:
    pool = open_nixl(await handle_of(producer))
    assert pool.read([4, 1, 2]).equal(SOURCE.read_blocks([4, 1, 2]))
    with pytest.raises(PeerPoolError, match="block 5 is not in a pool"):
        pool.read([5])

    await producer.kill()

    with pytest.raises(PeerPoolError, match="NIXL"):
        await asyncio.to_thread(pool.read, [0])
    pool.close()
    with pytest.raises(PeerPoolError, match="closed"):
        pool.read([0])


async def test_pool_outlives_an_older_one_of_its_owner(producer: Remote) -> None:
    handle, reader = await handle_of(producer), NixlReader()
    with pytest.raises(PeerPoolError):
        open_nixl(dataclasses.replace(handle, memory=bytes(40)), reader)
    older, newer = (open_nixl(handle, reader) for _ in range(2))
    older.close()
    del older

    assert newer.read([1]).equal(SOURCE.read_blocks([1]))
    del newer
    assert open_nixl(handle, reader).read([2]).equal(SOURCE.read_blocks([2]))


async def test_all_pools_share_the_buffers(
    producer: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    register = nixl_pool._register

    def register_and_note(agent: object, tensor: torch.Tensor) -> None:
        sizes.append(tensor.nbytes)
        register(agent, tensor)

    monkeypatch.setattr(nixl_pool, "_register", register_and_note)
    handle, reader = await handle_of(producer), NixlReader()
    pools = [open_nixl(handle, reader) for _ in range(3)]
    reads = (asyncio.to_thread(pool.read, [block]) for pool in pools for block in range(5))

    rows = await asyncio.gather(*reads)

    assert torch.cat(rows).equal(SOURCE.read_blocks([*range(5)] * 3))
    assert sizes == [NUM_LANES * nixl_pool.read_buffer_bytes(SOURCE.block_bytes)]


async def test_closing_ends_a_read_that_waits_for_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")  # by others the owner need not run
    monkeypatch.setattr(nixl_pool, "READ_SECONDS", 3 * SECONDS)
    num_polls, is_waiting, loop = 0, asyncio.Event(), asyncio.get_running_loop()
    check = nixl_pool.NixlPool._check_open

    def count_and_check(pool: nixl_pool.NixlPool) -> None:
        nonlocal num_polls
        num_polls += 1
        if num_polls == 100:
            loop.call_soon_threadsafe(is_waiting.set)
        check(pool)

    monkeypatch.setattr(nixl_pool.NixlPool, "_check_open", count_and_check)
    async with Remote.run("nixl-producer") as producer:
        pool = open_nixl(await handle_of(producer))
        await asyncio.to_thread(pool.read, [0])
        producer.process.send_signal(signal.SIGSTOP)
        reading = asyncio.gather(*(asyncio.to_thread(pool.read, [1, 2, 3, 4]) for _ in range(4)))
        async with asyncio.timeout(SECONDS):
            await is_waiting.wait()
            pool.close()
            with pytest.raises(PeerPoolError, match="the pool is closed"):
                await reading
