"""KV by NIXL between two processes, where it is installed: `pip install 'pagoda-worker[nixl]'`."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
from support.kv_pools import make_cache
from support.kv_process import SECONDS, Consumer, Producer, Remote
from support.prefill_process import WORKER_ID, prefill_process
from support.worker_cluster import Cluster

from pagoda.engine.cache.peer_pool import PeerPoolError, PoolHandle, PoolKind, open_peer_pool
from pagoda.worker.errors import PushError
from pagoda.worker.kv_transfer.leases import LeaseOutcome
from pagoda.worker.kv_transfer.nixl_pool import NixlExport, NixlReader

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


def open_nixl(handle: PoolHandle):
    return open_peer_pool(handle, make_cache(), {PoolKind.NIXL: NixlReader().open})


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
    handle = await producer.do("nixl_handle")
    handle = PoolHandle(
        **handle | {"kind": PoolKind.NIXL, "memory": bytes.fromhex(handle["memory"])}
    )
    pool = open_nixl(handle)
    assert pool.read([4, 1, 2]).equal(SOURCE.read_blocks([4, 1, 2]))
    with pytest.raises(PeerPoolError, match="block 5 is not in a pool"):
        pool.read([5])

    await producer.kill()

    with pytest.raises(PeerPoolError, match="NIXL"):
        await asyncio.to_thread(pool.read, [0])
    pool.close()
    with pytest.raises(PeerPoolError, match="closed"):
        pool.read([0])
