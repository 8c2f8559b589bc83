import dataclasses
import random

import pytest
from support.stored_blocks import make_block, make_key

from pagoda_kvstore.tiers.memory import BLOCK_OVERHEAD_BYTES, MemoryTier

BLOCK_COST = 1000 + BLOCK_OVERHEAD_BYTES


def make_tier(num_blocks: int) -> MemoryTier:
    return MemoryTier(num_blocks * BLOCK_COST)


def evicted_names(tier: MemoryTier, name: str, parent: str = "") -> list[bytes] | None:
    victims = tier.put(make_block(name, parent))
    return None if victims is None else [victim.key.block_hash.rstrip(b".") for victim in victims]


def test_get_returns_what_was_put() -> None:
    tier = make_tier(1)
    block = make_block("a")
    tier.put(block)
    assert tier.get(block.key) == block
    assert tier.num_hits == 1


def test_get_of_unknown_block_is_a_miss() -> None:
    tier = make_tier(1)
    assert tier.get(make_key("a")) is None
    assert tier.num_misses == 1


def test_evicts_least_recently_used_first() -> None:
    tier = make_tier(3)
    for name in "abc":
        tier.put(make_block(name))
    tier.get(make_key("a"))
    assert evicted_names(tier, "d") == [b"b"]
    assert evicted_names(tier, "e") == [b"c"]


def test_evicts_leaves_before_their_parents() -> None:
    tier = make_tier(3)
    tier.put(make_block("root"))
    tier.put(make_block("child", "root"))
    tier.put(make_block("leaf", "child"))
    assert evicted_names(tier, "x") == [b"leaf"]
    assert evicted_names(tier, "y") == [b"child"]


def test_put_never_evicts_the_parent_of_the_new_block() -> None:
    tier = make_tier(2)
    tier.put(make_block("root"))
    tier.put(make_block("other"))
    assert evicted_names(tier, "child", "root") == [b"other"]


def test_chain_longer_than_the_budget_keeps_its_beginning() -> None:
    tier = make_tier(2)
    tier.put(make_block("0"))
    tier.put(make_block("1", "0"))
    assert evicted_names(tier, "2", "1") is None
    assert make_key("0") in tier
    assert make_key("1") in tier
    tier.check_invariants()


def test_block_larger_than_the_budget_is_refused() -> None:
    tier = make_tier(1)
    tier.put(make_block("a"))
    assert tier.put(make_block("b", num_bytes=5000)) is None
    assert make_key("a") in tier


def test_damaged_block_is_a_miss_dropped_and_counted() -> None:
    tier = make_tier(2)
    good, bad = make_block("good"), dataclasses.replace(make_block("bad"), digest=bytes(16))
    tier.put(good)
    tier.put(bad)
    assert tier.get(bad.key) is None
    assert (tier.num_bad_digests, bad.key in tier) == (1, False)
    assert tier.get(good.key) == good
    tier.check_invariants()


@pytest.mark.parametrize("seed", range(8))
def test_budget_and_tree_hold_under_random_load(seed: int) -> None:
    rng = random.Random(seed)
    tier = MemoryTier(30_000)
    names = [str(i) for i in range(80)]
    for _ in range(1500):
        name = rng.choice(names)
        parent = str(int(name) // 3) if rng.random() < 0.8 and name != "0" else ""
        if rng.random() < 0.6:
            tier.put(make_block(name, parent, num_bytes=rng.choice([100, 800, 3000])))
        else:
            tier.get(make_key(name))
        tier.check_invariants()
    assert tier.num_evictions > 50
