import dataclasses
import math

import pytest
from support.router_workers import SPEEDS, decode, prefill

from pagoda_router.placement import cost_model
from pagoda_router.placement.cost_model import PrefillCost


def cost_of_prefill(tokens: int, device: int, kvstore: int, **changes: int) -> PrefillCost:
    return cost_model.prefill_cost(
        prefill("p", **changes),
        num_prompt_tokens=tokens,
        num_device_blocks=device,
        num_kvstore_blocks=kvstore,
        fetch_base_ms=2.0,
    )


def test_cold_prompt_is_computed_whole() -> None:
    cost = cost_of_prefill(160, 0, 0)
    assert (cost.num_miss_tokens, cost.compute_ms, cost.fetch_ms, cost.queue_ms) == (160, 160, 0, 0)


def test_device_hits_are_not_computed() -> None:
    cost = cost_of_prefill(160, 4, 4)
    assert (cost.num_device_blocks, cost.num_miss_tokens, cost.compute_ms) == (4, 96, 96)
    assert cost.num_fetch_blocks == 0


def test_waiting_tokens_go_first() -> None:
    assert cost_of_prefill(160, 0, 0, num_waiting_tokens=300).queue_ms == 300


def test_last_prompt_token_is_computed_even_if_every_block_is_held() -> None:
    cost = cost_of_prefill(160, 10, 10)
    assert (cost.num_device_blocks, cost.num_miss_tokens) == (9, 16)


def test_fetch_where_it_is_faster_than_computing() -> None:
    # 6 blocks: 2 + 6 ms to fetch, 96 ms to compute
    cost = cost_of_prefill(160, 2, 8)
    assert (cost.num_fetch_blocks, cost.fetch_ms, cost.num_miss_tokens) == (8, 8.0, 32)


def test_no_fetch_where_computing_is_faster() -> None:
    # 1 block of 100 kB: 102 ms to fetch, 16 ms to compute
    cost = cost_of_prefill(160, 0, 1, block_bytes=100_000)
    assert (cost.num_fetch_blocks, cost.fetch_ms, cost.num_miss_tokens) == (0, 0.0, 160)


def test_fetch_reaches_no_further_than_the_last_token_allows() -> None:
    assert cost_of_prefill(160, 0, 10).num_fetch_blocks == 9


def test_step_time_counts_sequences_and_context() -> None:
    worker = decode("d", num_running=3, num_context_tokens=500)
    cost = cost_model.decode_cost(worker, num_prompt_tokens=100, num_output_tokens=10)
    # 10 + 2 * 4 + 0.01 * 600
    assert cost.tpot_ms == pytest.approx(24.0)
    assert cost.queue_ms == 0.0


def test_a_prompt_of_one_step_holds_nobody_up() -> None:
    worker = decode("d", num_running=3, num_context_tokens=500)  # a step: 10 + 2 * 3 + 0.01 * 500
    assert cost_model.held_up_ms(worker, 21.0) == 0.0
    assert cost_model.held_up_ms(worker, 31.0) == pytest.approx(3 * 10.0)
    assert cost_model.held_up_ms(decode("idle"), 1000.0) == 0.0


def test_full_batch_waits_for_places() -> None:
    worker = decode("d", num_running=8, num_waiting=1)
    cost = cost_model.decode_cost(worker, num_prompt_tokens=16, num_output_tokens=10)
    # 2 must finish; a step takes 10 + 2 * 8 = 26 ms; a place is free every 10 / 8 steps
    assert cost.queue_ms == pytest.approx(2 * 10 * 26 / 8)


def test_missing_blocks_wait_for_sequences_to_finish() -> None:
    worker = decode("d", num_running=4, num_blocks=100, num_free_blocks=0)
    cost = cost_model.decode_cost(worker, num_prompt_tokens=470, num_output_tokens=10)
    # 30 blocks missing, 25 a sequence: 2 must finish; a step takes 10 + 2 * 4 = 18 ms
    assert cost.queue_ms == pytest.approx(2 * 10 * 18 / 4)


def test_transfer_leaves_out_what_the_consumer_holds() -> None:
    ms = cost_model.transfer_ms(
        prefill("p"), decode("d"), num_prompt_tokens=170, num_consumer_blocks=3
    )
    assert ms == pytest.approx(8.0)


WINDOWED = {"kv_window": 40, "part_behind_window": 0.25}  # blocks of 16: the last 4 are whole


@pytest.mark.parametrize(
    ("num_tokens", "num_leading", "num_blocks"),
    [(64, 0, 4), (65, 0, 4.25), (160, 0, 5.5), (160, 5, 4.25), (160, 8, 2), (160, 10, 0)],
)
def test_behind_a_window_only_a_part_of_a_block_is_held(
    num_tokens: int, num_leading: int, num_blocks: float
) -> None:
    worker = decode("d", **WINDOWED)
    assert worker.blocks_for(num_tokens, num_leading_blocks=num_leading) == num_blocks
    whole = decode("d").blocks_for(num_tokens, num_leading_blocks=num_leading)
    assert whole == math.ceil(num_tokens / 16) - num_leading


def test_a_long_prompt_waits_and_travels_by_the_parts_that_are_held() -> None:
    load = {"num_running": 4, "num_blocks": 100, "num_free_blocks": 10}
    tokens = {"num_prompt_tokens": 470, "num_output_tokens": 10}
    assert cost_model.decode_cost(decode("d", **load), **tokens).queue_ms > 0
    # 26 of its 30 blocks are a quarter each: 10.5 blocks, and one sequence must finish for them.
    windowed = decode("d", **load, **WINDOWED)
    assert cost_model.decode_cost(windowed, **tokens).queue_ms == pytest.approx(10 * 18 / 4)
    free = decode("d", **{**load, "num_free_blocks": 11}, **WINDOWED)
    assert cost_model.decode_cost(free, **tokens).queue_ms == 0
    ms = cost_model.transfer_ms(
        prefill("p"), windowed, num_prompt_tokens=470, num_consumer_blocks=2
    )
    assert ms == pytest.approx(4 + 24 / 4)


def test_where_proposed_tokens_are_accepted_a_step_gives_several() -> None:
    plain = decode("d", num_running=3)
    speeds = dataclasses.replace(
        SPEEDS, step_per_proposed_token_ms=0.5, proposed_per_decode=4.0, accepted_per_decode=1.0
    )
    fast = decode("d", num_running=3, speeds=speeds)
    tokens = {"num_prompt_tokens": 100, "num_output_tokens": 10}
    assert cost_model.decode_cost(plain, **tokens).tpot_ms == 10 + 4 * 2 + 1
    # A step verifies 4 tokens for each of the 4, and gives each 2.
    assert cost_model.decode_cost(fast, **tokens).tpot_ms == (10 + 4 * (2 + 4 * 0.5) + 1) / 2


def test_who_waits_for_a_place_waits_for_fewer_steps_where_tokens_are_accepted() -> None:
    full = {"num_running": 8, "max_num_seqs": 8}
    speeds = dataclasses.replace(SPEEDS, accepted_per_decode=3.0)
    tokens = {"num_prompt_tokens": 100, "num_output_tokens": 10}
    slow = cost_model.decode_cost(decode("d", **full), **tokens)
    fast = cost_model.decode_cost(decode("d", speeds=speeds, **full), **tokens)
    assert fast.queue_ms == slow.queue_ms / 4 > 0
