import pytest

from pagoda_engine import StepStats
from pagoda_worker.heartbeat.status import Speed


def measured() -> Speed:
    speed = Speed()
    for _ in range(20):
        speed.steps.add(StepStats(num_sequences=2, num_decode_tokens=2, forward_seconds=4e-3))
    return speed


def test_nothing_is_said_of_fetches_before_steps_were_measured() -> None:
    assert Speed().step_cost(1000) is None


def test_a_fetch_costs_its_bytes_at_the_measured_rate() -> None:
    speed = measured()
    speed.fetch.add(50_000_000, 0.5)
    cost = speed.step_cost(block_bytes=200_000)
    assert cost is not None
    assert cost.of_fetch(10) == pytest.approx(2e-3 + 10 * 2e-3)
    assert cost.of_fetch(0) == 0


def test_until_a_fetch_was_measured_it_is_taken_to_be_fast() -> None:
    cost = measured().step_cost(block_bytes=1_000_000)
    assert cost is not None
    assert cost.of_fetch(8) == pytest.approx(10e-3)
