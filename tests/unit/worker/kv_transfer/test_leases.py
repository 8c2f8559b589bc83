import asyncio

import pytest
import torch

from pagoda_worker.errors import LeaseVoidError
from pagoda_worker.kv_transfer.base import PushTrailer
from pagoda_worker.kv_transfer.leases import Lease, LeaseOutcome, LeaseTable
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks

EPOCH = "epoch-1"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Pool:
    """Remembers what was written where."""

    num_layers = 4

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}

    def part_bytes(self, layers=None) -> int:
        return 4 if layers is None else len(layers)

    def write_blocks(self, block_ids, blocks, layers=None, *, expected=None) -> list[int]:
        layers = layers or range(4)
        for block_id, block in zip(block_ids, blocks, strict=True):
            whole = bytearray(self.written.get(block_id, bytes(4)))
            whole[layers.start : layers.stop] = bytes(block.tolist())
            self.written[block_id] = bytes(whole)
        return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
async def table(clock: Clock) -> LeaseTable:
    return LeaseTable(EPOCH, lease_seconds=10, clock=clock)


def open_lease(table: LeaseTable, pool: Pool, *, first_block: int = 1) -> Lease:
    blocks = ReservedBlocks(pool, [40, 41, 42, 43], first_block=first_block)
    return table.open("lease-1", sequence_id="s", producer_id="prefill-1", blocks=blocks)


def one_block(value: int) -> torch.Tensor:
    return torch.full((1, 4), value, dtype=torch.uint8)


async def test_received_lease_tells_the_result(table: LeaseTable, pool: Pool) -> None:
    lease = open_lease(table, pool)
    table.begin_push("lease-1", EPOCH)
    for index in (2, 1, 3):
        assert lease.blocks.write([index], one_block(index))
    result = PushTrailer(50, 7, False)

    table.settle(lease, LeaseOutcome.RECEIVED, result=result)

    settlement = await lease.settled
    assert settlement.outcome is LeaseOutcome.RECEIVED
    assert settlement.num_valid_blocks == 4
    assert settlement.result == result
    assert len(table) == 0
    assert pool.written == {41: b"\x01" * 4, 42: b"\x02" * 4, 43: b"\x03" * 4}


async def test_lease_expires_without_progress(table: LeaseTable, pool: Pool, clock: Clock) -> None:
    lease = open_lease(table, pool)

    clock.now += 9.9
    table.sweep()
    assert not lease.settled.done()
    clock.now += 0.2
    table.sweep()

    assert (await lease.settled).outcome is LeaseOutcome.EXPIRED
    assert not lease.blocks.write([1], one_block(1))
    assert pool.written == {}


async def test_progress_renews_a_lease(table: LeaseTable, pool: Pool, clock: Clock) -> None:
    lease = open_lease(table, pool)
    clock.now += 9
    table.begin_push("lease-1", EPOCH)
    clock.now += 9
    table.renew(lease)
    clock.now += 9

    table.sweep()

    assert not lease.settled.done()


async def test_broken_push_keeps_the_leading_blocks(table: LeaseTable, pool: Pool) -> None:
    lease = open_lease(table, pool)
    table.begin_push("lease-1", EPOCH)
    lease.blocks.write([1], one_block(1))
    lease.blocks.write([3], one_block(3))

    table.settle(lease, LeaseOutcome.BROKEN)

    assert (await lease.settled).num_valid_blocks == 2


async def test_only_the_first_end_counts(table: LeaseTable, pool: Pool) -> None:
    lease = open_lease(table, pool)
    table.settle(lease, LeaseOutcome.CANCELLED)

    table.settle(lease, LeaseOutcome.RECEIVED)
    table.lose_producer("prefill-1")

    assert (await lease.settled).outcome is LeaseOutcome.CANCELLED


@pytest.mark.parametrize("epoch", ["", "epoch-0"])
async def test_other_epoch_is_refused(table: LeaseTable, pool: Pool, epoch: str) -> None:
    open_lease(table, pool)
    with pytest.raises(LeaseVoidError, match="epoch"):
        table.begin_push("lease-1", epoch)


async def test_void_lease_is_refused(table: LeaseTable, pool: Pool) -> None:
    lease = open_lease(table, pool)
    table.settle(lease, LeaseOutcome.EXPIRED)
    with pytest.raises(LeaseVoidError, match="expired"):
        table.begin_push("lease-1", EPOCH)


async def test_lease_is_pushed_once(table: LeaseTable, pool: Pool) -> None:
    open_lease(table, pool)
    table.begin_push("lease-1", EPOCH)
    with pytest.raises(LeaseVoidError, match="another push"):
        table.begin_push("lease-1", EPOCH)


async def test_lost_producer_ends_its_leases_only(table: LeaseTable, pool: Pool) -> None:
    lease = open_lease(table, pool)
    table.lose_producer("prefill-2")
    assert not lease.settled.done()
    table.lose_producer("prefill-1")
    assert (await lease.settled).outcome is LeaseOutcome.PRODUCER_LOST


async def test_give_up_is_ignored_once_pushing(table: LeaseTable, pool: Pool) -> None:
    lease = open_lease(table, pool)
    table.give_up("lease-1", "epoch-0", "test")
    table.give_up("unknown", EPOCH, "test")
    table.begin_push("lease-1", EPOCH)
    table.give_up("lease-1", EPOCH, "test")
    assert not lease.settled.done()


async def test_shared_blocks_are_never_written(pool: Pool) -> None:
    blocks = ReservedBlocks(pool, [40, 41], first_block=1)
    with pytest.raises(ValueError, match=r"\[1, 2\)"):
        blocks.write([0], one_block(0))
    assert pool.written == {}
    assert blocks.close() == 1


async def test_close_waits_for_the_write_in_progress() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    event_loop = asyncio.get_running_loop()

    class SlowPool(Pool):
        def write_blocks(self, *arguments, **options) -> list[int]:
            event_loop.call_soon_threadsafe(started.set)
            asyncio.run_coroutine_threadsafe(may_end.wait(), event_loop).result(10)
            return super().write_blocks(*arguments, **options)

    pool = SlowPool()
    blocks = ReservedBlocks(pool, [40], first_block=0)
    writing = asyncio.create_task(asyncio.to_thread(blocks.write, [0], one_block(9)))
    await started.wait()
    closing = asyncio.create_task(asyncio.to_thread(blocks.close))

    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done
    may_end.set()

    assert await writing
    assert await closing == 1
    assert not blocks.write([0], one_block(1))
    assert pool.written == {40: b"\x09" * 4}
