"""A draft's KV: what is still right of it, and whose blocks are whose."""

import random

import pytest

from pagoda_engine.drafting.draft_blocks import DraftBlocks, DraftPool


def drafted(num_computed: int, ahead: list[int]) -> DraftBlocks:
    blocks = DraftBlocks()
    blocks.num_computed, blocks.ahead = num_computed, ahead
    return blocks


@pytest.mark.parametrize(
    ("came", "expected"),
    [([], 3), ([7], 3), ([4], 3), ([4, 5], 4), ([4, 9], 4), ([4, 5, 6], 5), ([4, 5, 6, 8], 6)],
)
def test_what_came_as_drafted_is_kept(came: list[int], expected: int) -> None:
    """Four tokens are known and drafted from, so KV is there of three of them and the last one."""
    blocks = drafted(3, [4, 5, 6])
    blocks.follow([1, 2, 3, *came] if came else [1, 2, 3, 4])
    assert blocks.num_computed == expected
    assert blocks.ahead == ()


def test_the_last_token_is_always_computed() -> None:
    blocks = drafted(2, [3])
    blocks.follow([1, 2, 3])
    assert blocks.num_computed == 2


def test_where_nothing_came_the_last_token_is_computed_again() -> None:
    blocks = drafted(4, [5, 6])
    blocks.follow([1, 2, 3, 4])
    assert blocks.num_computed == 3
    assert blocks.ahead == ()


def test_a_pool_gives_all_or_nothing() -> None:
    pool, blocks, other = DraftPool(4, 8), DraftBlocks(), DraftBlocks()
    assert pool.grow(blocks, 17)
    assert len(blocks.block_ids) == 3
    assert not pool.grow(other, 9)
    assert other.block_ids == []
    assert pool.num_free_blocks == 1
    pool.free(blocks)
    assert pool.grow(other, 32)


def test_random_use_loses_no_block(seed: int) -> None:
    rng = random.Random(seed)
    pool = DraftPool(20, 4)
    held: list[DraftBlocks] = []
    for _ in range(300):
        if held and rng.random() < 0.3:
            pool.free(held.pop(rng.randrange(len(held))))
        else:
            blocks = rng.choice([*held, DraftBlocks()])
            if pool.grow(blocks, rng.randint(1, 30)) and blocks not in held:
                held.append(blocks)
        pool.check_invariants(held)
    for blocks in held:
        pool.free(blocks)
    assert pool.num_free_blocks == 20
