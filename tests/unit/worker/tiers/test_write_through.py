"""Bounds of the write-through queue, against a small KvStoreService on real gRPC."""

import pytest
import torch
from support.write_through import BLOCK_BYTES, Harness, h

from pagoda_runtime.rpc_client import grpc_channel
from pagoda_worker.tiers.resident_blocks import ParentHashes


async def test_blocks_are_written_once_with_their_parents(served) -> None:
    store, channel = served
    harness = Harness(channel, 64 * BLOCK_BYTES)
    harness.parents.add_chain(h(100), [h(1), h(2)])
    harness.store(1, 2)
    harness.store(1)
    await harness.writer.write_queued()
    harness.store(2)
    await harness.writer.write_queued()

    blocks = store.messages[0].blocks
    assert store.hashes == [h(1), h(2)]
    assert [block.parent_hash for block in blocks] == [h(100), h(1)]
    assert blocks[1].payload == bytes([2]) * BLOCK_BYTES
    assert harness.num_dropped == 0


async def test_what_is_used_again_is_written_at_once_and_the_rest_when_idle(served) -> None:
    store, channel = served
    harness = Harness(channel, 3 * BLOCK_BYTES, writes_all=False)
    harness.store(1, 2, 3, 4, 5, 6)
    await harness.writer.write_queued()
    assert store.hashes == []

    harness.writer.note_reused([(h(2), 2), (h(3), 77), (h(9), 9)])  # 77: another block by now
    await harness.writer.write_queued()
    assert store.hashes == [h(2)]
    harness.writer.note_reused([(h(2), 2)])
    harness.store(evicted=(4,))
    harness.writer.on_idle()
    assert harness.writer.num_queued_blocks == 3  # as many as the budget allows
    await harness.writer.write_queued()
    harness.writer.on_idle()
    await harness.writer.write_queued()
    assert sorted(store.hashes) == [h(1), h(2), h(3), h(5), h(6)]
    assert harness.num_dropped == 0


async def test_what_the_kvstore_has_does_not_wait(served) -> None:
    store, channel = served
    harness = Harness(channel, 3 * BLOCK_BYTES, writes_all=False)
    harness.store(1, 2)
    harness.writer.mark_known([h(1)])
    harness.writer.on_idle()
    await harness.writer.write_queued()
    assert store.hashes == [h(2)]


async def test_messages_are_about_one_mebibyte(served) -> None:
    store, channel = served
    harness = Harness(channel, 64 * BLOCK_BYTES)
    harness.store(*range(10))
    await harness.writer.write_queued()
    assert [len(message.blocks) for message in store.messages] == [4, 4, 2]


async def test_queue_is_bounded_in_bytes(served) -> None:
    store, channel = served
    harness = Harness(channel, 3 * BLOCK_BYTES)
    harness.store(*range(10))
    assert harness.writer.num_queued_blocks == 3
    assert harness.num_dropped == 7

    await harness.writer.write_queued()
    harness.store(7)
    await harness.writer.write_queued()

    assert store.hashes == [h(0), h(1), h(2), h(7)]


async def test_block_overwritten_while_it_is_read_is_not_written(served) -> None:
    store, channel = served
    harness = Harness(channel, 64 * BLOCK_BYTES)
    harness.store(1, 2)
    harness.pool.on_read = lambda: harness.resident.on_evict(h(1), 1)

    await harness.writer.write_queued()

    assert store.hashes == [h(2)]
    assert harness.num_dropped == 1


async def test_blocks_that_cannot_be_read_do_not_stop_the_writer(
    served, caplog: pytest.LogCaptureFixture
) -> None:
    store, channel = served
    harness = Harness(channel, 64 * BLOCK_BYTES)

    def fail() -> None:
        raise torch.OutOfMemoryError("no room for a gather")

    harness.pool.on_read = fail
    harness.store(1, 2)
    await harness.writer.write_queued()
    assert harness.num_dropped == 2
    assert "no room for a gather" in caplog.text

    harness.pool.on_read = lambda: None
    harness.store(1)
    await harness.writer.write_queued()
    assert store.hashes == [h(1)]


async def test_known_blocks_are_not_written(served) -> None:
    store, channel = served
    harness = Harness(channel, 64 * BLOCK_BYTES)
    harness.writer.mark_known([h(1)])
    harness.store(1, 2)
    await harness.writer.write_queued()
    assert store.hashes == [h(2)]


async def test_absent_kvstore_drops_and_counts() -> None:
    async with grpc_channel("127.0.0.1:1", token="") as channel:
        harness = Harness(channel, 64 * BLOCK_BYTES)
        harness.store(1, 2)
        await harness.writer.write_queued()
        assert harness.num_dropped == 2
        assert harness.writer.num_queued_blocks == 0


async def test_an_absent_kvstore_is_not_told_that_all_was_overwritten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with grpc_channel("127.0.0.1:1", token="") as channel:
        harness = Harness(channel, 64 * BLOCK_BYTES)
        harness.store(1)
        harness.pool.on_read = lambda: harness.resident.on_evict(h(1), 1)
        await harness.writer.write_queued()
    assert harness.num_dropped == 1
    assert harness.writer.num_queued_blocks == 0
    assert not caplog.records


def test_parents_are_bounded() -> None:
    parents = ParentHashes(2)
    parents.add_chain(h(0), [h(1), h(2), h(3)])
    assert parents.get_all([h(1), h(2), h(3)]) == [b"", h(1), h(2)]


async def test_what_a_preempted_sequence_lost_is_written_at_once(served) -> None:
    store, channel = served
    harness = Harness(channel, 3 * BLOCK_BYTES, writes_all=False)
    harness.store(1, 2, 3)
    harness.writer.mark_known([h(2)])  # by another worker, or not
    harness.writer.keep([(h(1), 1), (h(2), 2)])
    harness.writer.keep([(h(1), 1), (h(2), 2)])
    assert harness.writer.match([h(1), h(2)]) == 0, "not yet"
    await harness.writer.write_queued()
    harness.writer.keep([(h(1), 1), (h(2), 2)])
    await harness.writer.write_queued()

    assert store.hashes == [h(1), h(2)]
    assert harness.writer.match([h(1), h(2), h(3)]) == 2
    assert harness.writer.match([h(3), h(1)]) == 0


async def test_what_was_overwritten_before_it_was_read_is_not_there(served) -> None:
    store, channel = served
    harness = Harness(channel, 3 * BLOCK_BYTES, writes_all=False)
    harness.store(1, 2)
    harness.pool.on_read = lambda: harness.resident.on_evict(h(2), 2)
    harness.writer.keep([(h(1), 1), (h(2), 2)])
    await harness.writer.write_queued()

    assert store.hashes == [h(1)]
    assert harness.writer.match([h(1), h(2)]) == 1
    assert harness.num_dropped == 1


async def test_what_a_fetch_did_not_bring_is_not_there_any_more(served) -> None:
    _, channel = served
    harness = Harness(channel, 8 * BLOCK_BYTES)
    harness.store(1, 2, 3)
    await harness.writer.write_queued()
    assert harness.writer.match([h(1), h(2), h(3)]) == 3
    harness.writer.note_fetched([h(1), h(2), h(3)], 1)
    assert harness.writer.match([h(1), h(2), h(3)]) == 1
    harness.writer.keep([(h(2), 2)])
    await harness.writer.write_queued()
    assert harness.writer.match([h(1), h(2)]) == 2


async def test_what_could_not_be_written_is_not_there() -> None:
    async with grpc_channel("127.0.0.1:1", token="") as channel:
        harness = Harness(channel, 8 * BLOCK_BYTES, writes_all=False)
        harness.store(1)
        harness.writer.keep([(h(1), 1)])
        await harness.writer.write_queued()
        assert harness.writer.match([h(1)]) == 0
        assert harness.num_dropped == 1
