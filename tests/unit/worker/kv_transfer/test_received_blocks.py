import itertools
import random

import pytest
import torch
from support.kv_pools import CPU, LAYOUT, fill

from pagoda.rpc.v1 import kv_transfer_pb2
from pagoda_engine import KvCache
from pagoda_engine.cache.peer_pool import (
    PeerPoolError,
    PoolExport,
    exportable_cache,
    open_peer_pool,
)
from pagoda_kernels.kv.block_digest import digest_blocks as kernel_digests
from pagoda_worker.errors import LeaseMismatchError
from pagoda_worker.kv_transfer.digests import digest_blocks
from pagoda_worker.kv_transfer.pool_codec import DigestKind
from pagoda_worker.kv_transfer.received_blocks import take_blocks
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks

SOURCE_IDS = [4, 2, 0, 1]
TARGET_IDS = [1, 3, 0, 2]
ALL = range(4)


class Transfer:
    """A producer's pool, a consumer's blocks, and messages from one to the other."""

    def __init__(self, *, is_inline: bool, kind: DigestKind, first_block: int = 0) -> None:
        self.source = fill(exportable_cache(LAYOUT, 5, CPU), seed=7)
        self.target = KvCache(LAYOUT, 4, CPU)
        self.kind = kind
        self.export = PoolExport(self.source)
        self.pool = None if is_inline else open_peer_pool(self.export.handle, self.target)
        self.blocks = ReservedBlocks(self.target, TARGET_IDS, first_block=first_block)

    def message(self, indices, layers=None) -> kv_transfer_pb2.PushBlocks:
        rows = self.source.read_blocks([SOURCE_IDS[i] for i in indices], layers)
        if self.kind is DigestKind.XXH3:
            digests = digest_blocks(rows.numpy())
        else:
            digests = [digest.tobytes() for digest in kernel_digests(rows).numpy()]
        message = kv_transfer_pb2.PushBlocks()
        if layers is not None:
            message.first_layer, message.num_layers = layers.start, len(layers)
        for index, digest, row in zip(indices, digests, rows.numpy(), strict=True):
            payload = row.tobytes() if self.pool is None else b""
            message.blocks.add(
                index=index,
                digest=digest,
                payload=payload,
                num_bytes=len(row),
                pool_block_id=SOURCE_IDS[index],
            )
        return message

    def take(self, message: kv_transfer_pb2.PushBlocks) -> list[int] | None:
        return take_blocks(self.blocks, self.pool, self.kind, message)

    def is_equal(self, index: int, layers: range) -> bool:
        ours, theirs = (
            cache.part(layers)[:, :, block_id]
            for cache, block_id in (
                (self.target, TARGET_IDS[index]),
                (self.source, SOURCE_IDS[index]),
            )
        )
        return torch.equal(ours, theirs)


@pytest.fixture(params=itertools.product([False, True], DigestKind), ids=str)
def transfer(request: pytest.FixtureRequest) -> Transfer:
    is_inline, kind = request.param
    return Transfer(is_inline=is_inline, kind=kind)


def test_whole_blocks_arrive(transfer: Transfer) -> None:
    assert transfer.take(transfer.message([0, 3])) == []
    assert transfer.take(transfer.message([2, 1])) == []
    assert all(transfer.is_equal(index, range(3)) for index in ALL)
    assert transfer.blocks.close() == 4


def test_layers_may_come_in_any_order_and_twice(transfer: Transfer) -> None:
    parts = [range(2, 3), range(0, 1), range(2, 3), range(1, 2)]
    for position, layers in enumerate(parts):
        assert not transfer.blocks.num_complete, position
        assert transfer.take(transfer.message(ALL, layers)) == []
    assert all(transfer.is_equal(index, range(3)) for index in ALL)
    assert transfer.blocks.close() == 4


def test_block_with_a_missing_layer_is_not_valid(transfer: Transfer) -> None:
    transfer.take(transfer.message([0, 1, 2], range(0, 2)))
    transfer.take(transfer.message([0, 2], range(2, 3)))
    assert transfer.blocks.incomplete() == [1]
    assert transfer.blocks.num_complete == 2
    assert transfer.blocks.close() == 1


def test_block_that_changed_after_its_digest_is_not_written(transfer: Transfer) -> None:
    message = transfer.message([0, 1, 2], range(1, 3))
    if transfer.pool is None:
        payload = message.blocks[1].payload
        message.blocks[1].payload = bytes([payload[0] ^ 1]) + payload[1:]
    else:
        transfer.source.tensor[1, 2, SOURCE_IDS[1], 3, 1, 7] += 1

    assert transfer.take(message) == [1]

    assert not transfer.target.tensor[:, :, TARGET_IDS[1]].any()
    assert transfer.is_equal(0, range(1, 3))
    assert transfer.is_equal(2, range(1, 3))
    assert transfer.take(transfer.message(ALL, range(0, 1))) == []
    assert transfer.blocks.close() == 1


def test_bad_layer_may_come_again(transfer: Transfer) -> None:
    message = transfer.message([0])
    message.blocks[0].digest = bytes(16)
    assert transfer.take(message) == [0]
    assert transfer.take(transfer.message([0])) == []
    assert transfer.blocks.close() == 1


def test_bad_copy_of_a_block_that_was_good_leaves_nothing_wrong(transfer: Transfer) -> None:
    assert transfer.take(transfer.message([0, 1])) == []
    message = transfer.message([0], range(1, 2))
    message.blocks[0].digest = bytes(16)
    assert transfer.take(message) == [0]
    num_valid = transfer.blocks.close()
    assert all(transfer.is_equal(index, range(3)) for index in range(num_valid))


def test_nothing_is_written_behind_the_fence(transfer: Transfer) -> None:
    message = transfer.message(ALL)
    transfer.blocks.close()
    assert transfer.take(message) is None
    assert not transfer.target.tensor.any()


def test_pool_closed_with_its_lease_is_no_error() -> None:
    transfer = Transfer(is_inline=False, kind=DigestKind.XXH3)
    message = transfer.message(ALL)
    transfer.pool.close()
    with pytest.raises(PeerPoolError, match="the pool is closed"):
        transfer.take(message)
    transfer.blocks.close()
    assert transfer.take(message) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"index": 4}, r"block 4 is not in \[1, 4\)"),
        ({"index": 0}, r"block 0 is not in \[1, 4\)"),
        ({"index": 2}, "named twice"),
        ({"num_bytes": 5}, "has 5 bytes, must have 768"),
        ({"digest": b"short"}, "no digest of 16 bytes"),
        ({"pool_block_id": 5}, "block 5 is not in a pool of 5 blocks"),
    ],
)
def test_block_that_does_not_fit_is_refused(change: dict[str, object], says: str) -> None:
    transfer = Transfer(is_inline=False, kind=DigestKind.XXH3, first_block=1)
    message = transfer.message([1, 2])
    for name, value in change.items():
        setattr(message.blocks[0], name, value)
    with pytest.raises((LeaseMismatchError, PeerPoolError), match=says):
        transfer.take(message)
    assert not transfer.target.tensor.any()


def test_message_without_blocks_is_refused(transfer: Transfer) -> None:
    with pytest.raises(LeaseMismatchError, match="names no block"):
        transfer.take(transfer.message([]))


def test_block_without_payload_or_pool_is_refused() -> None:
    transfer = Transfer(is_inline=True, kind=DigestKind.XXH3)
    message = transfer.message([1])
    message.blocks[0].payload = b""
    with pytest.raises(LeaseMismatchError, match="carries 0 bytes, and no pool was named"):
        transfer.take(message)


@pytest.mark.parametrize(("first", "num"), [(0, 4), (3, 1), (2, 2), (2**32 - 1, 1)])
def test_layers_that_do_not_exist_are_refused(transfer: Transfer, first: int, num: int) -> None:
    message = transfer.message([0])
    message.first_layer, message.num_layers = first, num
    with pytest.raises(LeaseMismatchError, match=r"not in \[0, 3\)"):
        transfer.take(message)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_valid_as_far_as_all_their_layers_came(seed: int) -> None:
    rng = random.Random(seed)
    transfer = Transfer(is_inline=False, kind=DigestKind.XXH3)
    came: set[tuple[int, int]] = set()
    for _ in range(rng.randrange(14)):
        start = rng.randrange(3)
        layers = range(start, rng.randrange(start, 3) + 1)
        indices = rng.sample(ALL, rng.randrange(1, 5))
        message = transfer.message(indices, layers)
        damaged = rng.choice(indices) if rng.random() < 0.3 else None
        if damaged is not None:
            message.blocks[indices.index(damaged)].digest = bytes(16)
        assert transfer.take(message) == ([] if damaged is None else [damaged])
        came.update(itertools.product(set(indices) - {damaged}, layers))

    for index, layer in itertools.product(ALL, range(3)):
        assert transfer.is_equal(index, range(layer, layer + 1)) == ((index, layer) in came)
    whole = [index for index in ALL if all((index, layer) in came for layer in range(3))]
    assert transfer.blocks.num_complete == len(whole)
    leading = next((i for i in ALL if i not in whole), 4)
    assert transfer.blocks.close() == leading
