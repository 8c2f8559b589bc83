import dataclasses
from typing import Any

import pytest
from support.engine_options import make_options

from pagoda_engine.errors import MemoryBudgetError
from pagoda_engine.start_up.host_memory import MIN_POOL_BYTES
from pagoda_engine.start_up.memory_budget import GIB, KvPool, MemoryBudget
from pagoda_engine.start_up.pool_plan import PoolPlanner

BLOCK_BYTES = 2 * 2**20  # of 16 tokens: Llama-3.1-8B in bf16
GPU = MemoryBudget(
    device="gpu",
    total_bytes=80 * GIB,
    free_bytes=60 * GIB,
    utilization=0.35,
    weight_bytes=15 * GIB,
    other_bytes=GIB // 2,
    activation_bytes=GIB,
    graph_bytes=GIB // 2,
    largest_step="8192 tokens of 256 sequences",
)


def planner(*, block_bytes: int = BLOCK_BYTES, **fields: Any) -> PoolPlanner:
    options = make_options(**fields)
    return PoolPlanner(options, block_bytes=block_bytes, model_limit=131072)


def refusal(planner: PoolPlanner, budget: MemoryBudget | None) -> MemoryBudgetError:
    with pytest.raises(MemoryBudgetError) as raised:
        planner.plan(budget)
    return raised.value


def test_on_a_gpu_the_pool_takes_what_is_left_of_the_share() -> None:
    assert planner().plan(GPU) == KvPool(11 * GIB // BLOCK_BYTES, BLOCK_BYTES, 16)


def test_on_a_cpu_the_pool_has_the_size_that_was_chosen_unless_one_is_set() -> None:
    assert planner().plan(None).num_blocks == MIN_POOL_BYTES // BLOCK_BYTES
    options = make_options()
    chosen = PoolPlanner(options, block_bytes=BLOCK_BYTES, model_limit=8192, default_bytes=GIB)
    assert chosen.plan(None).num_blocks == GIB // BLOCK_BYTES
    assert "as nobody set its size" in chosen.explain(chosen.plan(None), None)
    assert planner(kv_cache_bytes=GIB).plan(None).num_blocks == GIB // BLOCK_BYTES
    assert planner(kv_cache_bytes=GIB, num_blocks=7).plan(None).num_blocks == 7


def test_a_draft_has_as_many_blocks_and_its_part_of_the_share() -> None:
    options = make_options()
    both = PoolPlanner(
        options, block_bytes=BLOCK_BYTES, model_limit=131072, draft_block_bytes=BLOCK_BYTES // 10
    )
    pool = both.plan(GPU)
    assert pool.num_blocks == 11 * GIB // (BLOCK_BYTES + BLOCK_BYTES // 10)
    assert "the draft model beside it 1024.00 MiB: 12.8 KiB per token" in both.explain(pool, GPU)
    set_size = PoolPlanner(
        make_options(kv_cache_bytes=50 * GIB),
        block_bytes=BLOCK_BYTES,
        model_limit=131072,
        draft_block_bytes=BLOCK_BYTES // 4,
    )
    assert refusal(set_size, GPU).reason == "there is no room for a KV pool of 62.50 GiB"


def test_a_size_that_is_set_ignores_the_share() -> None:
    assert planner(kv_cache_bytes=20 * GIB).plan(GPU).num_blocks == 20 * GIB // BLOCK_BYTES


def test_a_size_that_is_set_must_be_free() -> None:
    error = refusal(planner(kv_cache_bytes=59 * GIB), GPU)

    assert error.reason == "there is no room for a KV pool of 59.00 GiB"
    assert "unset `kv_cache_bytes`" in str(error)


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"num_blocks": GIB}, f"lower `num_blocks` to {4 * GIB // BLOCK_BYTES} or less"),
        ({"kv_cache_bytes": 5 * GIB}, f"lower `kv_cache_bytes` to {4 * GIB} or less"),
    ],
)
def test_on_a_cpu_a_size_that_is_set_must_fit_the_memory(
    fields: dict[str, int], remedy: str
) -> None:
    with pytest.raises(MemoryBudgetError) as raised:
        planner(**fields).plan(None, host_bytes=4 * GIB)

    assert "the host has 4.00 GiB left" in raised.value.reason
    assert remedy in str(raised.value)
    fits = planner(kv_cache_bytes=4 * GIB).plan(None, host_bytes=4 * GIB)
    assert fits.num_blocks == 4 * GIB // BLOCK_BYTES
    assert planner(num_blocks=2048).plan(None, host_bytes=4 * GIB).num_blocks == 2048
    assert planner(**fields).plan(None, host_bytes=None).num_blocks


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"num_blocks": 100}, "lower `num_blocks` to 50 or less"),
        ({"kv_cache_bytes": 100 * BLOCK_BYTES}, f"lower `kv_cache_bytes` to {50 * BLOCK_BYTES} or"),
        ({}, f"set `kv_cache_bytes` to {50 * BLOCK_BYTES} or less"),
        ({"max_model_len": 1000}, "lower `max_model_len` to 800 or less"),
    ],
)
def test_beyond_a_limit_of_its_container_a_process_does_not_start(
    fields: dict[str, int], remedy: str
) -> None:
    with pytest.raises(MemoryBudgetError) as raised:
        planner(**fields).plan(None, 4 * GIB, limit_bytes=50 * BLOCK_BYTES)

    assert "container or control group leaves 100.00 MiB beside the weights" in raised.value.reason
    assert remedy in str(raised.value)
    assert "PAGODA_DECODE_MEM_LIMIT" in str(raised.value)
    assert planner(**fields).plan(None, 4 * GIB, limit_bytes=GIB).num_blocks
    assert planner().plan(GPU, 4 * GIB, limit_bytes=0).num_blocks  # it is no limit of a GPU's


def test_weights_that_a_limit_does_not_hold_are_refused_before_they_are_read() -> None:
    with pytest.raises(MemoryBudgetError) as raised:
        planner().plan(None, 4 * GIB, limit_bytes=-5)

    assert "leaves nothing beside the weights" in raised.value.reason
    assert "kv_cache_bytes" not in "".join(raised.value.remedies)


def test_no_room_for_a_block_names_the_setting_of_a_cpu() -> None:
    error = refusal(planner(kv_cache_bytes=100), None)

    assert error.reason == "there is no room for a KV block"
    assert f"raise `kv_cache_bytes` to {BLOCK_BYTES} or more" in str(error)


def test_weights_above_the_share_say_which_share_would_do() -> None:
    error = refusal(planner(), dataclasses.replace(GPU, utilization=0.15))

    assert error.reason == "there is no room for a KV block"
    assert "share                   12.00 GiB" in error.arithmetic
    assert "raise `gpu_memory_utilization` from 0.15 to 0.22 or more" in str(error)


def test_weights_above_the_whole_gpu_do_not_ask_for_a_share() -> None:
    error = refusal(planner(), dataclasses.replace(GPU, weight_bytes=140 * GIB, free_bytes=-60))

    assert error.remedies == (
        "lower `max_num_batched_tokens` or `max_num_seqs` (8192 tokens of 256 sequences)",
        "take a device with more memory, or a smaller model",
    )


def test_a_neighbour_that_holds_too_much_is_named() -> None:
    crowded = dataclasses.replace(GPU, free_bytes=GIB)
    error = refusal(planner(), crowded)

    assert "other processes hold 63.50 GiB" in error.arithmetic
    assert "give its neighbours on gpu less than the 63.50 GiB they hold" in error.remedies


def test_the_longest_sequence_that_was_asked_for_must_fit() -> None:
    error = refusal(planner(max_model_len=131072), GPU)

    assert error.reason == "there is no room for one sequence of max_model_len 131072 tokens"
    assert "90112 tokens, 0.7 sequences of 131072 tokens" in error.arithmetic
    assert "lower `max_model_len` to 90112 or less" in error.remedies
    assert "raise `gpu_memory_utilization` from 0.35 to 0.42 or more" in error.remedies


def test_the_share_that_an_error_asks_for_is_enough() -> None:
    larger = dataclasses.replace(GPU, utilization=0.42)

    assert planner(max_model_len=131072).plan(larger).num_tokens >= 131072


def test_the_longest_sequence_must_fit_on_a_cpu_too() -> None:
    error = refusal(planner(max_model_len=4096), None)
    needed = 4096 // 16 * BLOCK_BYTES

    assert "2048 tokens, 0.5 sequences of 4096 tokens" in error.arithmetic
    assert f"raise `kv_cache_bytes` to {needed} or more" in error.remedies
    assert planner(max_model_len=4096, kv_cache_bytes=needed).plan(None).num_tokens == 4096


def test_a_number_of_blocks_that_is_too_small_names_its_own_setting() -> None:
    error = refusal(planner(max_model_len=100, num_blocks=6), None)

    assert error.remedies == (
        "raise `num_blocks` to 7 or more",
        "lower `max_model_len` to 96 or less",
    )


def test_a_limit_that_nobody_set_is_what_fits() -> None:
    unset, small = planner(), KvPool(100, BLOCK_BYTES, 16)

    assert unset.max_model_len(small) == 1600
    assert unset.max_model_len(KvPool(100_000, BLOCK_BYTES, 16)) == 131072
    assert planner(max_model_len=512).max_model_len(small) == 512


def test_a_limit_above_the_models_asks_for_no_more_than_the_models() -> None:
    large = planner(max_model_len=200_000, kv_cache_bytes=131072 // 16 * BLOCK_BYTES)

    assert large.max_model_len(large.plan(None)) == 131072


def test_blocks_that_lose_parts_make_room_for_longer_sequences() -> None:
    def planned(**fields: Any) -> PoolPlanner:
        return PoolPlanner(
            make_options(**fields),
            block_bytes=BLOCK_BYTES,
            model_limit=131072,
            longest_table=lambda num_blocks: max(num_blocks, 4 * num_blocks - 90),
        )

    free = planned(num_blocks=100)
    pool = free.plan(None)
    assert pool.num_tokens == 1600
    assert free.max_model_len(pool) == 310 * 16
    assert "one sequence can have 4960 tokens" in free.explain(pool, None)
    assert planned(num_blocks=100, max_model_len=4960).plan(None).num_blocks == 100
    refused = str(refusal(planned(num_blocks=100, max_model_len=4961), None))
    assert "raise `num_blocks` to 101 or more" in refused
    assert "lower `max_model_len` to 4960 or less" in refused
