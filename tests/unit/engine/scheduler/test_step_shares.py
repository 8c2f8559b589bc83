"""What flows get of one step."""

import random

import pytest

from pagoda_engine.scheduler.sequence import Flow
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.tenants.step_shares import (
    MIN_TURN_TOKENS,
    Demand,
    Share,
    deal,
    deal_decodes,
    share_step,
)

A, B, C = (Flow(False, name) for name in (b"a", b"b", b"c"))
BATCH = Flow(True, b"batch")
COST = StepCost(base=10.0, per_decode=1.0, per_prefill_token=0.5)


def demand(
    num_decodes: int = 0,
    num_tokens: int = 0,
    *,
    weight: float = 1.0,
    last_step: int = 0,
    is_late: bool = False,
) -> Demand:
    return Demand(weight, last_step, last_step, num_decodes, num_tokens, is_late=is_late)


def share(
    demands: dict[Flow, Demand],
    *,
    cost: StepCost = COST,
    max_num_seqs: int = 64,
    max_num_tokens: int = 512,
) -> dict[Flow, Share]:
    return share_step(demands, cost, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens)


def test_a_flow_alone_gets_the_whole_step() -> None:
    assert share({A: demand(64, 600), B: demand()}) == {A: Share(64, 448), B: Share()}


def test_a_step_takes_less_than_twice_what_it_would_take_the_lighter_of_two() -> None:
    shares = share({A: demand(64), B: demand(1)})
    assert shares == {A: Share(6), B: Share(1)}  # 10 + 7 is below 1.6 * (10 + 1)


def test_beside_one_that_is_late_others_have_one_turn_each() -> None:
    shares = share({A: demand(64), B: demand(3, is_late=True), C: demand(9)})
    assert shares == {A: Share(1), B: Share(3), C: Share(1)}


def test_who_is_late_keeps_nobody_out() -> None:
    free = StepCost(10.0, 0.0, 0.0)
    shares = share({A: demand(64, is_late=True), B: demand(3)}, cost=free)
    assert shares == {A: Share(63), B: Share(1)}


def test_where_decodes_cost_nothing_nobody_is_held_back() -> None:
    shares = share({A: demand(63), B: demand(1)}, cost=StepCost(10.0, 0.01, 0.01))
    assert shares == {A: Share(63), B: Share(1)}


def test_rows_are_halved_between_two_that_want_all() -> None:
    assert share({A: demand(64), B: demand(64)}) == {A: Share(32), B: Share(32)}


def test_a_flow_gets_by_its_weight() -> None:
    shares = share({A: demand(64, weight=3), B: demand(64)})
    assert shares == {A: Share(48), B: Share(16)}


def test_a_prompt_does_not_stretch_the_steps_of_a_decode() -> None:
    shares = share({A: demand(0, 500), B: demand(1)})
    assert shares[B] == Share(1)
    assert 0 < COST.of(num_decodes=1, num_prefill_tokens=shares[A].num_prefill_tokens) <= 22


def test_a_decode_does_not_keep_a_prompt_from_its_share() -> None:
    shares = share({A: demand(64), B: demand(0, 60)})
    assert shares == {A: Share(25), B: Share(0, 58)}  # 10 + 54 is 1.6 * (10 + 30)


def test_a_flows_prompts_go_on_beside_its_own_decodes() -> None:
    shares = share({A: demand(64, 500), B: demand(1)}, max_num_tokens=64)
    assert shares[A].num_decodes
    assert shares[A].num_prefill_tokens


@pytest.mark.parametrize(("last_decode", "expected"), [(3, Share(1)), (5, Share(0, 3))])
def test_the_only_turn_goes_to_whom_the_last_one_did_not(last_decode: int, expected: Share) -> None:
    both = Demand(1.0, last_decode, 4, num_decodes=9, num_prefill_tokens=9)
    light = StepCost(base=0.0, per_decode=1.0, per_prefill_token=1.0)
    shares = share({A: both, B: demand(1, last_step=9)}, cost=light, max_num_tokens=3)
    assert shares[A] == expected


def test_those_in_the_background_get_the_last_rows() -> None:
    shares = share({BATCH: demand(9), A: demand(9), B: demand(9)}, max_num_seqs=2)
    assert shares == {BATCH: Share(), A: Share(1), B: Share(1)}


def test_who_was_in_a_step_longest_ago_comes_first() -> None:
    demands = {A: demand(1, last_step=7), B: demand(1, last_step=5), C: demand(1, last_step=6)}
    shares = share(demands, max_num_seqs=2)
    assert shares == {A: Share(), B: Share(1), C: Share(1)}


def test_an_import_shortens_the_steps_of_others() -> None:
    importing = Demand(1.0, 0, 0, 0, 0, num_importing=3)
    assert share({A: demand(64), B: importing}) == {A: Share(7), B: Share()}


@pytest.mark.parametrize("seed", range(40))
def test_limits_hold_and_everybody_gets_something(seed: int) -> None:
    rng = random.Random(seed)
    for step in range(50):
        cost = StepCost(rng.choice([0, 1, 30]), rng.choice([0, 1, 3]), rng.choice([0, 0.2, 2]))
        rows, tokens = rng.randint(1, 64), rng.randint(64, 600)
        demands = {
            Flow(rng.random() < 0.2, bytes([i])): demand(
                rng.choice([0, 1, 5, 64]),
                rng.choice([0, 1, 30, 900]),
                last_step=rng.randint(0, 9),
                is_late=rng.random() < 0.3,
            )
            for i in range(rng.randint(1, 6))
        }
        shares = share(demands, cost=cost, max_num_seqs=rows, max_num_tokens=tokens)
        decodes = sum(s.num_decodes for s in shares.values())
        prompt_tokens = sum(s.num_prefill_tokens for s in shares.values())
        assert decodes <= rows
        assert decodes + prompt_tokens <= tokens
        active = {flow: d for flow, d in demands.items() if d.is_active}
        for flow, asked in demands.items():
            got = shares[flow]
            assert got.num_decodes <= asked.num_decodes
            assert got.num_prefill_tokens <= asked.num_prefill_tokens
            if asked.is_active and rows >= len(active):
                assert got.num_decodes or got.num_prefill_tokens, (seed, step, flow)
        if len(active) > 1:
            alone = min(
                cost.of(
                    num_decodes=min(d.num_decodes, rows),
                    num_prefill_tokens=min(d.num_prefill_tokens, tokens - min(d.num_decodes, rows)),
                )
                for d in active.values()
            )
            # Everybody's first turn is given whatever it takes.
            turns = len(active) * max(cost.per_decode, cost.per_prefill_token * MIN_TURN_TOKENS)
            took = cost.of(num_decodes=decodes, num_prefill_tokens=prompt_tokens)
            assert took <= len(active) * alone + turns + 1e-6


def test_decodes_alone_are_dealt_out_as_among_prompts() -> None:
    rng = random.Random(7)
    for _ in range(400):
        per_decode = rng.choice([0.0, 0.1, 1.0, 3.0])
        demands = {
            Flow(rng.random() < 0.2, bytes([i])): demand(
                rng.choice([0, 1, 2, 5, 64]),
                weight=rng.choice([0.5, 1.0, 3.0]),
                last_step=rng.randint(0, 9),
                is_late=rng.random() < 0.3,
            )
            for i in range(rng.randint(1, 6))
        }
        active = [flow for flow, d in demands.items() if d.is_active]
        room, rows, tokens = rng.uniform(0, 80), rng.randint(1, 64), rng.randint(1, 128)
        cost = StepCost(10.0, per_decode, 0.5)
        expected = deal(demands, active, cost, room=room, num_rows=rows, num_tokens=tokens)
        num_rows = min(rows, tokens)
        got = deal_decodes(demands, active, per_decode, room=room, num_rows=num_rows)
        assert got == expected
