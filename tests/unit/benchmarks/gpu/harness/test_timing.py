import pytest
import torch
from gpu.harness.ceilings import Ceilings, measure_ceilings
from gpu.harness.deadline import Deadline
from gpu.harness.timing import MAX_REPETITIONS, MIN_REPETITIONS, Timing, WallClock, num_repetitions


def test_percentiles_are_of_the_sorted_measurements():
    timing = Timing.of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (timing.p20, timing.p50, timing.p80, timing.num_repetitions) == (1.0, 3.0, 4.0, 5)


@pytest.mark.parametrize(
    ("seconds", "count"), [(1e-9, MAX_REPETITIONS), (0.01, 40), (60.0, MIN_REPETITIONS)]
)
def test_repetitions_fit_the_budget_within_limits(seconds, count):
    assert num_repetitions(seconds, 0.4) == count


def test_wall_clock_warms_up_and_repeats():
    calls = []
    timing = WallClock().measure(lambda: calls.append(None), 1e-9)
    assert timing.num_repetitions == MIN_REPETITIONS
    assert len(calls) == MIN_REPETITIONS + 2


def test_ceilings_are_the_best_median(clock):
    got = measure_ceilings(clock, torch.device("cpu"), (1000, 5000), (8, 16))
    assert got.copy_bytes_per_second == pytest.approx(2 * 5000 / 1e-3)
    assert got.matmul_flops_per_second == pytest.approx(2 * 16**3 / 1e-3)
    assert got.launch_seconds == 1e-3


def test_ceilings_survive_a_file(tmp_path):
    ceilings = Ceilings(1.0, 2.0, 3.0)
    ceilings.write(tmp_path / "c.json")
    assert Ceilings.read(tmp_path / "c.json") == ceilings


def test_a_share_ends_before_the_whole():
    moment = 0.0
    whole = Deadline(100.0, lambda: moment)
    moment = 20.0
    part = whole.share(0.5)
    assert part.seconds_left == 40.0
    moment = 60.0
    assert part.has_passed
    assert whole.seconds_left == 40.0
