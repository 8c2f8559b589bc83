import random
from collections import Counter

import pytest

from pagoda_engine import BlockPoolError
from pagoda_engine.cache.block_pool import BlockPool


def name(i: int) -> bytes:
    return i.to_bytes(16, "little")


def registered(pool: BlockPool, *numbers: int) -> list[int]:
    """Allocate a block for each number, register it and free all."""
    block_ids = pool.allocate((), len(numbers))
    assert block_ids is not None
    for block_id, number in zip(block_ids, numbers, strict=True):
        assert pool.register(block_id, name(number))
    pool.free(block_ids)
    return block_ids


def test_allocate_hands_out_every_block_once() -> None:
    pool = BlockPool(5)
    block_ids = pool.allocate((), 5)
    assert block_ids is not None
    assert sorted(block_ids) == [0, 1, 2, 3, 4]
    assert pool.num_free_blocks == 0


def test_allocate_returns_none_and_changes_nothing_when_too_few_are_free() -> None:
    pool = BlockPool(3)
    registered(pool, 1)
    assert pool.allocate([name(1)], 3) is None
    assert pool.num_free_blocks == 3
    pool.check_invariants({})


def test_allocate_by_hash_shares_the_block() -> None:
    pool = BlockPool(4)
    (block_id,) = registered(pool, 1)
    assert pool.allocate([name(1)], 0) == [block_id]
    assert pool.allocate([name(1)], 1) != [block_id]
    assert pool.ref_count(block_id) == 2


def test_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(1)
    (block_id,) = registered(pool, 1)
    pool.allocate([name(1)], 0)
    pool.allocate([name(1)], 0)
    pool.free([block_id])
    assert pool.num_free_blocks == 0
    pool.free([block_id])
    assert pool.num_free_blocks == 1


def test_match_counts_leading_hashes_only() -> None:
    pool = BlockPool(4)
    registered(pool, 1, 2, 4)
    assert pool.match([name(1), name(2), name(3), name(4)]) == 2
    assert pool.match([name(3)]) == 0


def test_blank_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(3)
    registered(pool, 1)
    pool.allocate((), 2)
    assert pool.match([name(1)]) == 1


def test_evict_takes_the_least_recently_freed() -> None:
    pool = BlockPool(2)
    registered(pool, 1)
    registered(pool, 2)
    pool.free(pool.allocate([name(1)], 0) or [])  # used again
    pool.allocate((), 1)
    assert pool.match([name(1)]) == 1
    assert pool.match([name(2)]) == 0


def test_evict_takes_the_end_of_a_sequence_first() -> None:
    pool = BlockPool(3)
    registered(pool, 1, 2, 3)
    pool.allocate((), 1)
    assert pool.match([name(1), name(2), name(3)]) == 2


def test_evict_never_takes_the_hits_of_the_same_allocation() -> None:
    pool = BlockPool(2)
    registered(pool, 1, 2)
    block_ids = pool.allocate([name(1)], 1)
    assert block_ids is not None
    assert pool.match([name(1)]) == 1
    assert pool.match([name(2)]) == 0


def test_evict_keeps_held_blocks() -> None:
    pool = BlockPool(2)
    registered(pool, 1)
    pool.allocate([name(1)], 0)
    assert pool.allocate((), 2) is None


def test_on_evict_sees_the_block_before_it_is_reused() -> None:
    seen: list[tuple[bytes, int]] = []
    pool = BlockPool(1, on_evict=lambda block_hash, block_id: seen.append((block_hash, block_id)))
    (block_id,) = registered(pool, 1)
    assert seen == []
    pool.allocate((), 1)
    assert seen == [(name(1), block_id)]


def test_register_keeps_the_first_block_of_a_hash() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate((), 2) or []
    assert pool.register(first, name(1))
    assert not pool.register(second, name(1))
    assert pool.allocate([name(1)], 0) == [first]


@pytest.mark.parametrize("is_held", [False, True], ids=["cached", "held"])
def test_forget_ends_the_reuse_of_a_block_and_leaves_it_to_its_holder(is_held: bool) -> None:
    lost: list[tuple[bytes, int]] = []
    pool = BlockPool(2, on_evict=lambda block_hash, block_id: lost.append((block_hash, block_id)))
    (block_id,) = registered(pool, 1)
    held = (pool.allocate([name(1)], 0) or []) if is_held else []
    pool.take_events()
    pool.forget([name(1), name(2)])
    pool.check_invariants(Counter(held))
    assert lost == [(name(1), block_id)]
    assert pool.match([name(1)]) == 0
    assert pool.take_events() == ((), (name(1),))
    pool.free(held)
    assert pool.num_free_blocks == 2


def test_register_refuses_a_block_that_nobody_holds() -> None:
    with pytest.raises(BlockPoolError) as error:
        BlockPool(1).register(0, name(1))
    assert error.value.block_id == 0


def test_free_twice_is_an_error() -> None:
    pool = BlockPool(1)
    block_ids = pool.allocate((), 1) or []
    pool.free(block_ids)
    with pytest.raises(BlockPoolError, match="nobody holds"):
        pool.free(block_ids)


def test_events_name_what_was_stored_and_evicted_since_the_last_call() -> None:
    pool = BlockPool(1)
    (block_id,) = registered(pool, 1)
    assert pool.has_events
    assert pool.take_events() == (((name(1), block_id),), ())
    pool.allocate((), 1)
    assert pool.take_events() == ((), (name(1),))
    assert not pool.has_events


def test_events_of_a_hash_that_left_and_came_back_say_stored() -> None:
    pool = BlockPool(1)
    registered(pool, 1)
    pool.take_events()
    pool.free(pool.allocate((), 1) or [])
    (block_id,) = registered(pool, 1)
    assert pool.take_events() == (((name(1), block_id),), ())


def test_events_of_a_hash_that_came_and_left_say_evicted() -> None:
    pool = BlockPool(1)
    registered(pool, 1)
    pool.allocate((), 1)
    assert pool.take_events() == ((), (name(1),))


def test_events_replayed_give_the_contents_of_the_pool() -> None:
    rng = random.Random(0)
    pool = BlockPool(6)
    held: list[list[int]] = []
    mirror: dict[bytes, int] = {}
    for _ in range(2000):
        number = rng.randrange(12)
        if held and rng.random() < 0.5:
            pool.free(held.pop(rng.randrange(len(held))))
        elif rng.random() < 0.1:
            pool.forget([name(number)])
        elif pool.match([name(number)]):
            held.append(pool.allocate([name(number)], 0) or [])
        elif block_ids := pool.allocate((), 1):
            pool.register(block_ids[0], name(number))
            held.append(block_ids)
        pool.check_invariants(Counter(b for block_ids in held for b in block_ids))
        if rng.random() < 0.3:
            stored, evicted = pool.take_events()
            mirror.update(stored)
            for block_hash in evicted:
                mirror.pop(block_hash, None)
            here = {name(n) for n in range(12) if pool.match([name(n)])}
            assert set(mirror) == here


def test_check_invariants_finds_a_lost_reference() -> None:
    pool = BlockPool(2)
    pool.allocate((), 1)
    with pytest.raises(AssertionError, match="holders say 0"):
        pool.check_invariants({})
