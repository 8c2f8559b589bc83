"""A pool of blocks that have windowed parts: who holds them, and what goes first."""

import random
from collections import Counter

import pytest
from support.seeds import seed_of_tests

from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.cache.windowed_parts import NO_PLACE, place_table

NUM_PARTS = 2


def name(i: int) -> bytes:
    return i.to_bytes(16, "little")


def make(num_blocks: int, lost: list[tuple[bytes, int]] | None = None) -> BlockPool:
    table = place_table(num_blocks * (1 + NUM_PARTS), NUM_PARTS)
    on_evict = None if lost is None else lambda *block: lost.append(block)
    return BlockPool(num_blocks, on_evict=on_evict, part_places=table)


def give_back(pool: BlockPool, block_ids: list[int], windowed: range) -> None:
    pool.drop_windowed(block_ids[windowed.start : windowed.stop])
    pool.free(block_ids)


def cached(pool: BlockPool, *numbers: int) -> list[int]:
    """Fill a block for each number, with all parts, and give them back."""
    block_ids = pool.allocate((), len(numbers), windowed=range(len(numbers)))
    assert block_ids is not None
    for block_id, number in zip(block_ids, numbers, strict=True):
        assert pool.register(block_id, name(number))
    give_back(pool, block_ids, range(len(numbers)))
    return block_ids


def test_a_pool_has_more_blocks_without_their_windowed_parts() -> None:
    pool = make(4)
    block_ids = pool.allocate((), 8, windowed=range(6, 8))
    assert block_ids is not None
    assert len(set(block_ids)) == 8
    assert pool.num_free_places == 0
    assert [pool.is_whole(b) for b in block_ids] == [False] * 6 + [True] * 2
    assert pool.allocate((), 1) is None
    give_back(pool, block_ids, range(6, 8))
    assert pool.num_free_blocks == 4
    pool.check_invariants({})


def test_parts_go_first_and_the_block_stays() -> None:
    lost: list[tuple[bytes, int]] = []
    pool = make(3, lost)
    (first, second) = cached(pool, 1, 2)
    taken = pool.allocate((), 5)  # three blank places, and those of the parts of one block
    assert taken is not None
    assert lost == [(name(1), first)], "told before its bytes are overwritten"
    assert pool.match([name(1), name(2)]) == 2
    assert [pool.is_whole_here(name(i)) for i in (1, 2)] == [False, True]
    assert pool.take_events() == (((name(1), first), (name(2), second)), ()), "nothing was evicted"
    pool.check_invariants(Counter(taken))


def test_parts_that_somebody_holds_stay() -> None:
    pool = make(2)
    cached(pool, 1, 2)
    held = pool.allocate([name(1), name(2)], 0, windowed=range(1, 2))
    assert held is not None
    assert pool.num_free_places == NUM_PARTS
    assert pool.attach_windowed([]) == 0
    assert pool.allocate((), NUM_PARTS + 1) is None
    taken = pool.allocate((), NUM_PARTS)
    assert taken is not None
    assert [pool.is_whole(b) for b in held] == [False, True]
    pool.check_invariants(Counter(held + taken), Counter(held[1:]))


def test_a_whole_block_takes_the_hash_over_from_one_that_lost_parts() -> None:
    pool = make(4)
    (old,) = cached(pool, 1)
    taken = pool.allocate((), 10)
    assert taken is not None
    assert not pool.is_whole(old)
    pool.free(taken)
    (new,) = pool.allocate((), 1, windowed=range(1)) or ()
    pool.take_events()
    assert pool.register(new, name(1))
    assert pool.take_events() == (((name(1), new),), ())
    assert pool.is_whole_here(name(1))
    (third,) = pool.allocate((), 1, windowed=range(1)) or ()
    assert not pool.register(third, name(1)), "the block that is here is as good"
    pool.check_invariants(Counter([new, third]), Counter([new, third]))


def test_random_holders_find_what_they_hold() -> None:
    rng = random.Random(seed_of_tests())
    lost: list[tuple[bytes, int]] = []
    pool = make(5, lost)
    held: list[tuple[list[int], range]] = []
    num_found = num_taken_over = 0
    for _ in range(3000):
        number, num_new = rng.randrange(8), rng.randint(0, 3)
        if held and rng.random() < 0.5:
            give_back(pool, *held.pop(rng.randrange(len(held))))
        elif rng.random() < 0.05:
            pool.forget([name(number)])
        else:
            hits = [name(number)] * pool.match([name(number)])
            is_whole = bool(hits) and pool.is_whole_here(hits[0])
            start = rng.randint(0 if is_whole or not hits else 1, len(hits) + num_new)
            windowed = range(start, rng.randint(start, len(hits) + num_new))
            num_free = pool.num_allocatable(hits, windowed=windowed)
            block_ids = pool.allocate(hits, num_new, windowed=windowed)
            num_needed = pool.num_places_for(len(hits), num_new, windowed)
            assert (block_ids is None) == (num_free < num_needed)
            if block_ids is None:
                continue
            assert pool.num_free_places == num_free - num_needed
            num_found += len(hits)
            held.append((block_ids, windowed))
            new = block_ids[len(hits) :]
            if not hits and new:
                pool.register(new[0], name(number))
            elif new and windowed.start <= len(hits) < windowed.stop:
                num_taken_over += pool.register(new[0], name(number))
        pool.check_invariants(
            Counter(b for block_ids, _ in held for b in block_ids),
            Counter(b for ids, windowed in held for b in ids[windowed.start : windowed.stop]),
        )
    assert num_found > 100
    assert num_taken_over > 5
    assert lost


def test_places_are_told_to_who_reads_the_table() -> None:
    table = place_table(6, NUM_PARTS)
    pool = BlockPool(2, part_places=table)
    block_ids = pool.allocate((), 2, windowed=range(1, 2))
    assert block_ids is not None
    assert table[block_ids[0]].tolist() == [NO_PLACE] * NUM_PARTS
    places = {*block_ids, *table[block_ids[1]].tolist()}
    assert len(places) == 2 + NUM_PARTS
    with pytest.raises(AssertionError, match="holders say"):
        pool.check_invariants(Counter(block_ids), {})
