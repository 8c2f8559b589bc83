"""What a kvstore has lost is written to it again, and asked for seldom."""

import asyncio

import pytest
from support.write_through import BLOCK_BYTES, Harness, h

from pagoda.rpc.v1 import kv_store_pb2_grpc
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_worker.tiers.known_blocks import (
    MAX_MATCHES,
    MAX_REMEMBERED_HASHES,
    SURE_SECONDS,
    KnownBlocks,
    find_lost,
)


async def test_what_the_kvstore_lost_is_written_again_when_it_is_used_again(served) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES, writes_all=False)
    harness.store(1, 2, 3)
    blocks = [(h(number), number) for number in (1, 2, 3)]
    harness.writer.note_reused(blocks)
    await harness.writer.write_queued()
    store.held.remove(h(2))

    harness.now += SURE_SECONDS
    harness.writer.note_reused(blocks)
    await harness.writer.write_queued()

    assert store.hashes == [h(1), h(2), h(3), h(2)]
    assert harness.num_dropped == 0


async def test_what_the_kvstore_lost_is_written_again_when_it_is_computed_again(served) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1, 2)
    await harness.writer.write_queued()
    store.held.clear()

    harness.now += SURE_SECONDS
    harness.store(2)
    await harness.writer.write_queued()

    assert store.hashes == [h(1), h(2), h(2)]


async def test_what_is_computed_again_waits_again_if_only_what_is_used_again_is_written(
    served,
) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES, writes_all=False)
    harness.store(1)
    harness.writer.on_idle()
    await harness.writer.write_queued()
    store.held.clear()

    harness.now += SURE_SECONDS
    harness.store(1)
    await harness.writer.write_queued()
    assert store.hashes == [h(1)]
    harness.writer.on_idle()
    await harness.writer.write_queued()
    assert store.hashes == [h(1), h(1)]


async def test_what_a_preempted_sequence_had_is_written_again_if_the_kvstore_lost_it(
    served,
) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1)
    await harness.writer.write_queued()
    store.held.clear()

    harness.now += SURE_SECONDS
    harness.writer.keep([(h(1), 1)])
    await harness.writer.write_queued()

    assert store.hashes == [h(1), h(1)]


async def test_a_missed_block_is_written_again_and_those_behind_it_are_asked_for(served) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1, 2, 3, 4)
    await harness.writer.write_queued()
    store.held -= {h(2), h(4)}
    harness.writer.note_fetched([h(1), h(2), h(3), h(4)], 1)

    harness.store(2, 3, 4)
    await harness.writer.write_queued()

    assert sorted(store.hashes[4:]) == [h(2), h(4)]
    assert store.asked == [2]


async def test_what_the_kvstore_still_has_is_asked_for_once_in_a_while(served) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1, 2)
    await harness.writer.write_queued()

    for _ in range(5):
        harness.now += SURE_SECONDS / 2
        harness.writer.note_reused([(h(1), 1), (h(2), 2)])
        await harness.writer.write_queued()

    assert store.asked == [2, 2]
    assert store.hashes == [h(1), h(2)]


async def test_a_kvstore_that_lost_all_is_not_asked_for_each_block(served) -> None:
    store, channel = served
    harness = Harness(channel, 100 * BLOCK_BYTES)
    numbers = range(3 * MAX_MATCHES)
    harness.store(*numbers)
    await harness.writer.write_queued()
    store.held.clear()

    harness.now += SURE_SECONDS
    harness.store(*numbers)
    await harness.writer.write_queued()

    assert len(store.asked) == MAX_MATCHES
    assert store.hashes == [h(number) for number in numbers] * 2


async def test_a_lost_block_that_was_overwritten_meanwhile_is_not_written(served) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1)
    await harness.writer.write_queued()
    store.held.clear()

    harness.now += SURE_SECONDS
    harness.store(1)
    harness.resident.on_evict(h(1), 1)
    await harness.writer.write_queued()

    assert store.hashes == [h(1)]
    assert harness.num_dropped == 0


async def test_a_kvstore_that_does_not_answer_has_lost_nothing(served) -> None:
    _, channel = served
    async with grpc_channel("127.0.0.1:1", token="") as nobody:
        stub = kv_store_pb2_grpc.KvStoreServiceStub(nobody)
        assert await find_lost(stub, bytes(16), [h(1)]) == set()
    stub = kv_store_pb2_grpc.KvStoreServiceStub(channel)
    assert await find_lost(stub, bytes(16), [h(1)]) == {h(1)}


async def test_what_could_not_be_written_is_written_at_its_use_once_the_kvstore_answers(
    served,
) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES, writes_all=False)
    harness.store(1)
    store.is_down = True
    for _ in range(2):
        harness.writer.note_reused([(h(1), 1)])
        await harness.writer.write_queued()
        harness.now += SURE_SECONDS

    store.is_down = False
    harness.writer.note_reused([(h(1), 1)])
    await harness.writer.write_queued()

    assert store.hashes == [h(1)]


async def test_blocks_are_not_read_for_a_kvstore_that_does_not_answer(
    served, caplog: pytest.LogCaptureFixture
) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    num_reads = 0

    def count() -> None:
        nonlocal num_reads
        num_reads += 1

    harness.pool.on_read = count
    store.is_down = True
    harness.store(1)
    for _ in range(5):
        harness.writer.note_reused([(h(1), 1)])
        await harness.writer.write_queued()
        harness.now += SURE_SECONDS / 2

    assert (num_reads, harness.num_dropped, len(caplog.messages)) == (1, 1, 1)


async def test_a_block_used_while_others_are_asked_for_is_asked_for_next(served) -> None:
    store, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1, 2)
    await harness.writer.write_queued()
    harness.now += SURE_SECONDS
    store.on_match = lambda: harness.writer.note_reused([(h(2), 2)])
    harness.writer.note_reused([(h(1), 1)])
    async with asyncio.timeout(60):
        run = asyncio.create_task(harness.writer.run())
        await store.was_asked_twice.wait()
    run.cancel()

    assert store.asked == [1, 1]


def test_known_blocks_are_bounded() -> None:
    known = KnownBlocks(clock=lambda: 0.0)
    known.add(h(number) for number in range(MAX_REMEMBERED_HASHES + 1))
    known.doubt([h(0)])
    assert h(0) not in known
    assert h(1) in known
    assert not known.is_doubtful(h(0))
