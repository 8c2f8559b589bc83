import random
from dataclasses import replace

import pytest
from support.clocks import Now

from pagoda_engine import StepStats
from pagoda_engine.scheduler.step_cost import attended_tokens
from pagoda_worker.heartbeat.speed_model import Rate, SpeedModel


def decode_step(num_sequences: int, context: int, seconds: float) -> StepStats:
    return StepStats(
        num_sequences=num_sequences,
        num_decode_tokens=num_sequences,
        num_context_tokens=context,
        forward_seconds=seconds,
    )


def prefill_step(
    num_tokens: int, seconds: float, num_decodes: int = 0, *, first_token: int = 0
) -> StepStats:
    return StepStats(
        num_sequences=1 + num_decodes,
        num_prefill_tokens=num_tokens,
        num_decode_tokens=num_decodes,
        num_attended_tokens=attended_tokens(first_token, num_tokens),
        num_context_tokens=first_token + num_tokens,
        num_prefill_context_tokens=first_token + num_tokens,
        forward_seconds=seconds,
    )


def test_a_step_costs_the_devices_time_and_the_gap_before_it() -> None:
    model = SpeedModel()
    for _ in range(20):
        model.add(
            StepStats(
                num_sequences=1,
                num_decode_tokens=1,
                num_context_tokens=10,
                schedule_seconds=1.0,
                launch_seconds=1.0,
                wait_seconds=1.0,
                commit_seconds=1.0,
                forward_seconds=3e-3,
                sample_seconds=0.5e-3,
                gap_seconds=0.5e-3,
            )
        )
    assert model.step_time.predict(1, 10) == pytest.approx(4e-3, rel=0.01)


def train(model: SpeedModel, base: float, a: float, b: float, *, noise: float = 0.0) -> None:
    rng = random.Random(1)
    for _ in range(400):
        s = rng.randint(1, 32)
        context = s * rng.randint(10, 2000)
        seconds = (base + a * s + b * context) * (1 + noise * rng.uniform(-1, 1))
        model.add(decode_step(s, context, seconds))


def test_nothing_measured_is_zero() -> None:
    model = SpeedModel()
    assert model.prefill_tokens_per_second == 0
    assert model.step_time.predict(4, 100) == 0


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_fit_finds_the_coefficients(noise: float) -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 1e-7, noise=noise)

    fitted = model.step_time

    tolerance = 1e-4 if noise == 0 else 0.15
    assert fitted.predict(16, 16_000) == pytest.approx(
        4e-3 + 16 * 2e-4 + 16_000 * 1e-7, rel=tolerance
    )
    assert fitted.predict(1, 100) == pytest.approx(4.21e-3, rel=tolerance)


def test_coefficients_are_never_negative() -> None:
    model = SpeedModel()
    rng = random.Random(2)
    for _ in range(100):
        model.add(decode_step(rng.randint(1, 8), rng.randint(1, 4000), 5e-3))

    fitted = model.step_time

    assert min(fitted.base, fitted.per_sequence, fitted.per_context_token) >= 0
    assert fitted.predict(4, 2000) == pytest.approx(5e-3, rel=0.05)


def test_single_batch_size_still_predicts_itself() -> None:
    model = SpeedModel()
    for step in range(50):
        model.add(decode_step(1, 100 + step, 3e-3))
    assert model.step_time.predict(1, 120) == pytest.approx(3e-3, rel=0.02)


def test_stall_does_not_move_the_fit_much() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    model.add(decode_step(1, 100, 30.0))
    assert model.step_time.predict(1, 100) == pytest.approx(4.2e-3, rel=0.1)


def test_old_speeds_are_forgotten() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    for _ in range(4):
        train(model, 8e-3, 4e-4, 0.0)
    assert model.step_time.predict(8, 1000) == pytest.approx(8e-3 + 8 * 4e-4, rel=0.05)


def test_prefill_rate_leaves_out_the_decodes_of_mixed_steps() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    for _ in range(50):
        model.add(prefill_step(512, 0.5 + 4e-3 + 8 * 2e-4, num_decodes=8))
    assert model.prefill_tokens_per_second == pytest.approx(1024, rel=0.01)


def test_a_stall_does_not_move_the_prefill_rate_much() -> None:
    model = SpeedModel()
    for _ in range(50):
        model.add(prefill_step(512, 0.5))
    model.add(prefill_step(512, 60.0))
    assert model.prefill_tokens_per_second > 800
    for _ in range(400):
        model.add(prefill_step(512, 5.0))  # it has become slower
    assert model.prefill_tokens_per_second == pytest.approx(102.4, rel=0.05)


def test_a_prefill_rate_says_how_old_it_is() -> None:
    now = Now()
    model = SpeedModel(now)
    model.add(prefill_step(512, 0.5))
    now.seconds += 7
    model.add(decode_step(1, 100, 0.1))
    assert model.prefill_age_seconds == 7
    model.add(prefill_step(512, 0.5))
    assert model.prefill_age_seconds == 0


def test_a_token_of_a_prompt_costs_more_the_more_it_attends_to() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    for _ in range(30):  # short ones
        model.add(prefill_step(200, 200 * 1e-4 + attended_tokens(0, 200) * 2e-8))
    for first in range(0, 100_000, 20):  # a long one, whose chunks become as small as they can
        seconds = 20 * 1e-4 + attended_tokens(first, 20) * 2e-8
        model.add(prefill_step(20, seconds + 4e-3 + 8 * 2e-4, num_decodes=8, first_token=first))
        if first in (20_000, 99_980):
            cost = model.step_cost
            assert cost is not None
            assert cost.of_prompt(first, 8) == pytest.approx(8 * (1e-4 + first * 2e-8), rel=0.03)
    cost = model.step_cost
    assert cost is not None
    assert cost.of_prompt(0, 100) == pytest.approx(0.01, rel=0.1), "short ones were forgotten"


def test_chunks_of_few_tokens_tell_what_a_far_token_takes() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    for first in range(50_000, 50_200, 2):
        model.add(prefill_step(2, 4e-3, first_token=first))
    cost = model.step_cost
    assert cost is not None
    assert cost.of_prompt(50_100, 3) == pytest.approx(6e-3, rel=0.02)
    assert model.prefill_tokens_per_second == 0


def test_what_a_chunk_reads_once_is_told_from_what_each_token_takes() -> None:
    """As chunks shrink, and long after they are all of the fewest tokens."""
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)

    def seconds(first: int, num_tokens: int) -> float:
        each = num_tokens * 2e-5 + attended_tokens(first, num_tokens) * 2e-9
        return each + (first + num_tokens) * 12e-9

    first = 0
    while first < 100_000:
        num_tokens = max(1, min(200, int((1.5e-3 - 12e-9 * first) / (2e-5 + 2e-9 * first))))
        took = seconds(first, num_tokens)
        model.add(prefill_step(num_tokens, took + 5.6e-3, num_decodes=8, first_token=first))
        first += num_tokens
    cost = model.step_cost
    assert cost is not None
    for num_tokens in (1, 2, 4, 8):
        took = cost.of_prompt(99_000, num_tokens)
        assert took == pytest.approx(seconds(99_000, num_tokens), rel=0.05)
    assert cost.tokens_within(1.05 * seconds(99_000, 4), 99_000) == 4


def test_prompts_that_are_all_as_long_cost_by_their_tokens() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    for _ in range(30):
        model.add(prefill_step(512, 0.1))
    cost = model.step_cost
    assert cost is not None
    assert cost.of_prompt(0, 512) == pytest.approx(0.1, rel=0.01)
    assert cost.per_prefill_token == pytest.approx(0.1 / 512, rel=0.02)


def test_tiny_prefills_say_nothing_of_throughput() -> None:
    model = SpeedModel()
    model.add(prefill_step(2, 0.5))
    assert model.prefill_tokens_per_second == 0


def test_steps_that_are_all_as_large_leave_the_usual_proportion() -> None:
    """Else all of it might be the base: then a large step looks as short as a small one."""
    model = SpeedModel()
    for _ in range(50):
        model.add(decode_step(64, 6400, 36e-3))
    cost = model.step_cost
    assert cost is not None
    assert cost.of(num_decodes=64, num_prefill_tokens=0) == pytest.approx(36e-3, rel=0.02)
    assert cost.base == pytest.approx(8 * cost.per_decode, rel=0.6)


def test_a_small_step_is_remembered_while_only_large_ones_run() -> None:
    """Step times bend: a line through sizes of 32 to 64 would say 5.9 ms of one sequence."""
    model = SpeedModel()
    for _ in range(100):
        model.add(decode_step(1, 100, 3e-3))
    rng = random.Random(4)
    for _ in range(1000):
        s = rng.randint(32, 64)
        model.add(decode_step(s, 100 * s, 5.8e-3 + 0.08e-3 * s))
    cost = model.step_cost
    assert cost is not None
    assert cost.of(num_decodes=1, num_prefill_tokens=0) == pytest.approx(3e-3, rel=0.1)
    assert cost.of(num_decodes=64, num_prefill_tokens=0) == pytest.approx(10.9e-3, rel=0.15)


def test_step_cost_has_a_decodes_context_and_the_prompts_rate() -> None:
    model = SpeedModel()
    assert model.step_cost is None
    rng = random.Random(3)
    for _ in range(200):
        s = rng.randint(1, 32)
        model.add(decode_step(s, 500 * s, 4e-3 + 2e-4 * s + 1e-7 * 500 * s))
    cost = model.step_cost
    assert cost is not None
    assert cost.base == pytest.approx(4e-3, rel=0.02)
    assert cost.per_decode == pytest.approx(2.5e-4, rel=0.02)
    assert cost.per_prefill_token == pytest.approx(0.35 * cost.per_decode)
    for _ in range(20):
        model.add(prefill_step(500, 0.5))
    cost = model.step_cost
    assert cost is not None
    assert cost.per_prefill_token == pytest.approx(1e-3, rel=0.01)


def test_a_token_of_a_prompt_costs_something_where_a_decode_seems_to_cost_nothing() -> None:
    """As on a busy machine, whose small steps took longer than its large ones."""
    model = SpeedModel()
    for _ in range(50):
        model.add(decode_step(1, 100, 5e-3))
        model.add(decode_step(8, 800, 4e-3))
    cost = model.step_cost
    assert cost is not None
    assert cost.per_decode == 0
    assert cost.per_prefill_token == pytest.approx(cost.base * 0.35 / 8)
    assert cost.base > 3e-3


def proposing_step(num_sequences: int, num_proposed: int, seconds: float) -> StepStats:
    return StepStats(
        num_sequences=num_sequences,
        num_decode_tokens=num_sequences,
        num_context_tokens=100 * num_sequences,
        num_proposed_tokens=num_proposed,
        forward_seconds=seconds,
    )


def test_step_cost_has_what_a_proposed_token_adds() -> None:
    model = SpeedModel()
    rng = random.Random(5)
    for _ in range(200):
        s, k = rng.randint(1, 16), rng.randint(0, 7)
        model.add(proposing_step(s, s * k, 4e-3 + 2e-4 * s + 5e-5 * s * k))
    cost = model.step_cost
    assert cost is not None
    assert cost.base == pytest.approx(4e-3, rel=0.02)
    assert cost.per_decode == pytest.approx(2e-4, rel=0.02)
    assert cost.per_proposed_token == pytest.approx(5e-5, rel=0.02)
    assert model.step_time.predict(4, 400, 28) == pytest.approx(6.2e-3, rel=0.02)


def test_without_proposals_a_proposed_token_has_the_usual_proportion() -> None:
    model = SpeedModel()
    train(model, 4e-3, 2e-4, 0.0)
    cost = model.step_cost
    assert cost is not None
    assert cost.per_proposed_token == pytest.approx(0.5 * cost.per_decode)
    assert model.step_time.per_proposed_token == 0


def test_steps_that_all_propose_as_much_leave_the_usual_proportion() -> None:
    model = SpeedModel()
    for _ in range(100):
        model.add(proposing_step(1, 7, 12.5e-3))
    cost = model.step_cost
    assert cost is not None
    assert cost.base == pytest.approx(8e-3, rel=0.6)
    assert 0.2e-3 < cost.per_proposed_token < 0.8e-3


def test_proposed_tokens_that_seemed_dear_are_worth_a_trial_again() -> None:
    model = SpeedModel()
    for i in range(100):
        s, k = 1 + i % 3, i % 2
        model.add(proposing_step(s, s * k, 4e-3 + 2e-4 * s + 2e-3 * s * k))
    dear = model.step_cost
    for i in range(4000):
        model.add(decode_step(1 + i % 3, 100, 4e-3 + 2e-4 * (1 + i % 3)))
    forgotten = model.step_cost
    assert dear is not None
    assert forgotten is not None
    assert dear.per_proposed_token > 1e-3
    assert forgotten.per_proposed_token < 0.4 * dear.per_proposed_token
    assert max(forgotten.proposed_by_batch) < 0.5 * max(dear.proposed_by_batch)


def test_rate_weighs_by_amount() -> None:
    rate = Rate(decay=1.0)
    rate.add(1000, 1.0)
    rate.add(10, 1.0)
    rate.add(0, 5.0)
    assert rate.per_second == pytest.approx(505)


def test_what_a_decode_gets_beside_its_token_is_an_average_of_late() -> None:
    model = SpeedModel()
    assert model.proposed_per_decode == model.accepted_per_decode == 0
    for _ in range(50):
        model.add(replace(proposing_step(4, 12, 5e-3), num_accepted_tokens=6))
    assert (model.proposed_per_decode, model.accepted_per_decode) == (3.0, 1.5)
    model.add(StepStats(num_sequences=1, num_prefill_tokens=100, forward_seconds=1e-2))
    assert model.accepted_per_decode == 1.5, "a prompt says nothing of decodes"
    for _ in range(2000):
        model.add(proposing_step(4, 0, 5e-3))
    assert model.accepted_per_decode < 0.01
