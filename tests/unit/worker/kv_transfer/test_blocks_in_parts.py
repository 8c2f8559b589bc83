"""Blocks in parts from pool to pool: parts are found, and what a block lacks is left out."""

from collections.abc import Iterator

import pytest
import torch

from pagoda_engine import KvCache, KvLayout
from pagoda_engine.cache import PeerPool, PoolExport, exportable_cache, open_peer_pool
from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.cache.layer_groups import layer_groups
from pagoda_worker.errors import LeaseMismatchError
from pagoda_worker.kv_transfer.block_parts import BlockPart, encode_part
from pagoda_worker.kv_transfer.pool_codec import DigestKind
from pagoda_worker.kv_transfer.received_blocks import take_blocks
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks

CPU = torch.device("cpu")
NUM_BLOCKS = 6
LAYOUT = KvLayout(7, 4, 2, 8, torch.float32, groups=layer_groups((9, 9, None, 9, 9, None, 9)))
FIRST_PART = LAYOUT.first_part


def filled(num_whole: int, seed: int) -> tuple[KvCache, list[int]]:
    """Return a cache of random numbers, and four blocks, the last ones with all their parts."""
    cache = exportable_cache(LAYOUT, NUM_BLOCKS, CPU)
    generator = torch.Generator().manual_seed(seed)
    cache.tensor.copy_(torch.rand(cache.tensor.shape, generator=generator))
    pool = BlockPool(NUM_BLOCKS, part_places=cache.part_places)
    pool.allocate((), 3)  # so that places differ on both sides
    block_ids = pool.allocate((), 4, windowed=range(4 - num_whole, 4))
    assert block_ids is not None
    return cache, block_ids


@pytest.fixture
def source() -> tuple[KvCache, list[int]]:
    return filled(num_whole=4, seed=1)


@pytest.fixture(params=["pool", "inline"])
def opened(request: pytest.FixtureRequest, peer: PeerPool) -> PeerPool | None:
    return peer if request.param == "pool" else None


@pytest.fixture
def peer(source: tuple[KvCache, list[int]]) -> Iterator[PeerPool]:
    """The source's pool, as another process sees it."""
    export = PoolExport(source[0])
    pool = open_peer_pool(export.handle, KvCache(LAYOUT, 1, CPU))
    yield pool
    pool.close()
    export.close()


def test_what_is_kept_arrives(source: tuple[KvCache, list[int]], opened: PeerPool | None) -> None:
    (theirs, their_ids), (ours, our_ids) = source, filled(num_whole=2, seed=2)
    before = ours.tensor.clone()
    blocks = ReservedBlocks(ours, our_ids, first_block=0, num_partial=2, first_part=FIRST_PART)
    for first, layers in ((0, FIRST_PART), (2, None)):
        part = BlockPart(first, tuple(their_ids[first : first + 2]), layers)
        message = encode_part(theirs, part, DigestKind.XXH3, is_inline=opened is None)
        assert take_blocks(blocks, opened, DigestKind.XXH3, message.blocks) == []
    assert blocks.close() == 4
    expected, found = theirs.read_blocks(their_ids), ours.read_blocks(our_ids)
    assert torch.equal(found[2:], expected[2:])
    part_bytes = LAYOUT.place_bytes
    assert torch.equal(found[:2, :part_bytes], expected[:2, :part_bytes])
    assert not found[:2, part_bytes:].any(), "what is not there reads as zeros"
    written = [place for block in ours.places_of(our_ids) for place in block if place >= 0]
    others = [place for place in range(ours.tensor.shape[2]) if place not in written]
    assert len(written) == 4 + 2 * (LAYOUT.num_parts - 1)
    assert torch.equal(ours.tensor[:, :, others], before[:, :, others])


def test_a_block_in_part_is_not_whole(source: tuple[KvCache, list[int]]) -> None:
    (theirs, their_ids), (ours, our_ids) = source, filled(num_whole=4, seed=2)
    blocks = ReservedBlocks(ours, our_ids, first_block=0, num_partial=1, first_part=FIRST_PART)
    part = BlockPart(0, tuple(their_ids), FIRST_PART)
    message = encode_part(theirs, part, DigestKind.XXH3, is_inline=True)
    assert take_blocks(blocks, None, DigestKind.XXH3, message.blocks) == []
    assert blocks.close() == 1


def test_a_message_names_all_places(source: tuple[KvCache, list[int]], peer: PeerPool) -> None:
    (theirs, their_ids), (ours, our_ids) = source, filled(num_whole=4, seed=2)
    blocks = ReservedBlocks(ours, our_ids, first_block=0)
    part = BlockPart(0, tuple(their_ids), None)
    message = encode_part(theirs, part, DigestKind.XXH3, is_inline=False)
    message.blocks.blocks[1].pool_part_ids.pop()
    with pytest.raises(LeaseMismatchError, match="block 1 names 3 places"):
        take_blocks(blocks, peer, DigestKind.XXH3, message.blocks)
