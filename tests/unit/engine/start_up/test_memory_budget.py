"""The arithmetic of a device's memory: never above the share, never above what is free."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.start_up.memory_budget import GIB, KvPool, MemoryBudget, format_bytes

HALF = MemoryBudget(
    device="gpu",
    total_bytes=80,
    free_bytes=64,
    utilization=0.5,
    weight_bytes=10,
    other_bytes=2,
    activation_bytes=3,
    graph_bytes=1,
    copy_bytes=2,
)
SIZES = st.integers(0, 200 * GIB)
BUDGETS = st.builds(
    MemoryBudget,
    device=st.just("gpu"),
    total_bytes=st.integers(1, 200 * GIB),
    free_bytes=st.integers(-200 * GIB, 200 * GIB),
    utilization=st.floats(0.01, 1.0),
    weight_bytes=SIZES,
    other_bytes=SIZES,
    activation_bytes=SIZES,
    graph_bytes=SIZES,
    copy_bytes=SIZES,
)
NEEDS = ("weight_bytes", "other_bytes", "activation_bytes", "graph_bytes", "copy_bytes")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 22),  # alone: its half, less all that is not KV
        ({"free_bytes": 28}, 22),  # a neighbour took the other half
        ({"free_bytes": 20}, 14),  # a neighbour took more: what is free, less what is to come
        ({"weight_bytes": 38}, 0),  # the weights leave nothing of the share
        ({"free_bytes": -5}, 0),  # the weights will not even fit
        ({"graph_bytes": 0, "activation_bytes": 0}, 26),
    ],
)
def test_pool_is_what_the_share_leaves(changes: dict[str, int], expected: int) -> None:
    assert replace(HALF, **changes).pool_bytes == expected


@given(BUDGETS)
def test_a_pool_exceeds_neither_share_nor_free_memory(budget: MemoryBudget) -> None:
    later = budget.activation_bytes + budget.graph_bytes + budget.copy_bytes
    taken = budget.weight_bytes + budget.other_bytes

    assert budget.pool_bytes >= 0
    if budget.pool_bytes:
        assert budget.pool_bytes + taken + later <= budget.share_bytes <= budget.total_bytes
        assert budget.pool_bytes + later <= budget.free_bytes


@given(BUDGETS, st.sampled_from(NEEDS), st.integers(0, 10 * GIB))
def test_more_need_never_gives_a_larger_pool(budget: MemoryBudget, name: str, more: int) -> None:
    needier = replace(budget, **{name: getattr(budget, name) + more})

    assert needier.pool_bytes <= budget.pool_bytes


@given(BUDGETS, st.integers(0, 10 * GIB), st.floats(0.01, 1.0))
def test_more_memory_never_gives_a_smaller_pool(
    budget: MemoryBudget, more: int, utilization: float
) -> None:
    freer = replace(budget, free_bytes=budget.free_bytes + more)
    larger = replace(budget, utilization=max(budget.utilization, utilization))

    assert freer.pool_bytes >= budget.pool_bytes
    assert larger.pool_bytes >= budget.pool_bytes


@given(BUDGETS, SIZES)
def test_the_share_asked_for_a_pool_suffices(budget: MemoryBudget, pool_bytes: int) -> None:
    utilization = budget.utilization_for(pool_bytes)
    alone = replace(budget, utilization=utilization, free_bytes=2 * 1000 * GIB)

    assert alone.pool_bytes >= pool_bytes - 1  # a byte is lost in rounding to a share


def test_neighbours_are_what_this_worker_does_not_hold() -> None:
    assert replace(HALF, free_bytes=30).neighbour_bytes == 38


def test_every_term_is_in_the_explanation() -> None:
    budget = MemoryBudget(
        device="NVIDIA H100 (cuda:0)",
        total_bytes=80 * GIB,
        free_bytes=60 * GIB,
        utilization=0.55,
        weight_bytes=15 * GIB,
        other_bytes=GIB // 2,
        activation_bytes=2 * GIB,
        graph_bytes=GIB,
        copy_bytes=GIB // 4,
        largest_step="8192 tokens of 256 sequences",
    )

    assert budget.explain().splitlines() == [
        "NVIDIA H100 (cuda:0):",
        "  share                   44.00 GiB  0.55 of 80.00 GiB",
        "  weights                -15.00 GiB",
        "  context, libraries      -0.50 GiB",
        "  largest step            -2.00 GiB  8192 tokens of 256 sequences",
        "  graphs                  -1.00 GiB  allowance",
        "  KV copies               -0.25 GiB",
        "  left of the share       25.25 GiB",
        "  free for KV             56.75 GiB  other processes hold 4.50 GiB",
    ]


def test_a_pool_says_what_it_holds() -> None:
    pool = KvPool(num_blocks=1000, block_bytes=2 * 2**20, block_size=16)

    assert pool.explain(8192) == (
        "KV pool 1.95 GiB: 1000 blocks of 16 tokens, 128 KiB per token, 16000 tokens, "
        "2.0 sequences of 8192 tokens"
    )


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0.00 MiB"), (5 * 2**20, "5.00 MiB"), (3 * GIB, "3.00 GiB")]
)
def test_sizes_are_in_the_larger_unit(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
