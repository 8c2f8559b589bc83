import importlib

import pytest
import torch
from gpu.harness.deadline import Deadline
from gpu.harness.timing import Timing
from gpu.kernels.cases import bench_attention_quantised, bench_paged_attention
from gpu.kernels.tunable import Tunable, tiles
from gpu.kernels.tune import candidate_groups, check_row, group_name, search, summary

from pagoda_kernels.tuning import TileTable

DEFAULT = {"BLOCK_N": 1}
OWN = 0, 1
"""What is launched, (case, BLOCK_N), without an entry."""


class FollowingClock:
    """Times a launch by what it returns."""

    def __init__(self, seconds):
        self.seconds = seconds

    def measure(self, launch, budget_seconds):
        return Timing.of([self.seconds[launch()]])

    def check_device(self):
        pass


@pytest.fixture
def table():
    return TileTable("h200", {})


PASSED = {"status": "passed"}
NOT_REACHED = {"status": "out of time"}


def make_tunable(make_case, table, *, right=(1, 16, 32, 64), num_cases=1):
    def current():
        return table.lookup("op", "shape", DEFAULT)["BLOCK_N"]

    def check(seed):
        if current() == 128:
            raise RuntimeError("out of resource: shared memory")
        return 0.0 if current() in right else float("nan")

    cases = [
        make_case(name=str(number), check=check, build=lambda n=number: lambda: (n, current()))
        for number in range(num_cases)
    ]
    return Tunable("op", "shape", cases, tiles(BLOCK_N=(16, 32, 64, 128)))


def test_a_candidate_is_right_if_all_its_checks_pass_with_it(make_case, table):
    tunable = make_tunable(make_case, table, right=(16, 64), num_cases=2)
    rows = [check_row(tunable, tile, table) for tile in tunable.candidates[:3]]
    assert [row["status"] for row in rows] == ["passed", "wrong", "passed"]
    with pytest.raises(RuntimeError, match="shared memory"):
        check_row(tunable, tunable.candidates[3], table)
    assert table.lookup("op", "shape", DEFAULT) == DEFAULT


def test_keeps_the_fastest_right_tile(make_case, table):
    tunable = make_tunable(make_case, table)
    clock = FollowingClock({OWN: 2.5, (0, 16): 3.0, (0, 64): 2.0})
    wrong = {"status": "wrong", "reason": "error nan"}
    rows = [PASSED, PASSED, wrong, PASSED, NOT_REACHED]
    trials = search(tunable, table, clock, Deadline(60), rows)
    assert table.lookup("op", "shape", DEFAULT) == {"BLOCK_N": 64}
    assert [list(trial.seconds) for trial in trials] == [[2.5], [3.0], [], [2.0], []]
    assert [trial.reason for trial in trials[2::2]] == ["error nan", "out of time"]
    assert "5 of 5 tried, best {'BLOCK_N': 64}" in summary(tunable, trials)


@pytest.mark.parametrize("own", [PASSED, NOT_REACHED], ids=["faster", "not timed"])
def test_replaces_nothing_that_was_not_slower(make_case, table, own):
    tunable = make_tunable(make_case, table)
    clock = FollowingClock({OWN: 1.0, (0, 16): 3.0})
    search(tunable, table, clock, Deadline(60), [own, PASSED, *[NOT_REACHED] * 3])
    assert table.lookup("op", "shape", DEFAULT) == DEFAULT


@pytest.mark.parametrize("seconds", [0, 60])
def test_what_was_not_reached_keeps_the_tile_it_had(make_case, table, seconds):
    tunable = make_tunable(make_case, table)
    table.replace("op", "shape", {"BLOCK_N": 32})
    first = NOT_REACHED if seconds else PASSED
    assert (
        search(tunable, table, FollowingClock({}), Deadline(seconds), [first, *[PASSED] * 4]) == []
    )
    assert table.lookup("op", "shape", DEFAULT) == {"BLOCK_N": 32}


def test_all_cases_weigh_the_same(make_case, table):
    tunable = make_tunable(make_case, table, num_cases=2)
    seconds = {OWN: 9.0, (1, 1): 9.0, (0, 16): 1e-6, (1, 16): 3.0, (0, 32): 2e-6, (1, 32): 1.0}
    rows = [PASSED, PASSED, PASSED, NOT_REACHED, NOT_REACHED]
    search(tunable, table, FollowingClock(seconds), Deadline(60), rows)
    assert table.lookup("op", "shape", DEFAULT) == {"BLOCK_N": 32}


def test_leaves_the_default_where_nothing_is_right(make_case, table):
    tunable = make_tunable(make_case, table)
    trials = search(tunable, table, FollowingClock({}), Deadline(60), [NOT_REACHED] * 5)
    assert table.lookup("op", "shape", DEFAULT) == DEFAULT
    assert "none right" in summary(tunable, trials)


def test_stops_when_time_is_up(make_case, table):
    tunable = make_tunable(make_case, table)
    assert search(tunable, table, FollowingClock({}), Deadline(0), [PASSED] * 5) == []
    assert table.lookup("op", "shape", DEFAULT) == DEFAULT


def test_every_candidate_is_a_group_of_its_own():
    groups = candidate_groups("paged_attention", "cuda")
    offered = bench_paged_attention.tunables(torch.device("cuda"))
    assert len({group.name for group in groups}) == len(groups)
    assert [group.name for group in groups] == [
        group_name(tunable, number)
        for tunable in offered
        for number in range(1 + len(tunable.candidates))
    ]


def test_tiles_are_all_combinations():
    assert tiles(a=(1, 2), b=(3, 4)) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]


@pytest.mark.parametrize(
    ("op", "module", "arguments"),
    [
        ("attention_decode", "decode", (128, 2, 2)),
        ("attention_decode", "decode", (128, 2, 1)),
        ("attention_prefill", "prefill", (128, 2)),
        ("attention_prefill_described", "cache_descriptors", (128, 64)),
    ],
)
def test_attention_offers_the_parameters_its_launchers_ask_for(monkeypatch, op, module, arguments):
    asked = []
    launcher = importlib.import_module(f"pagoda_kernels.attention.triton.{module}")
    monkeypatch.setattr(launcher, "tuned", lambda *key, **tile: asked.append((key, tile)))
    names = "tile_shape", "described_tile_shape"
    shape_of = next(getattr(launcher, name) for name in names if hasattr(launcher, name))
    shape_of(*arguments, torch.device("cuda"))
    ((got_op, shape, _), tile) = asked[0]
    benches = bench_paged_attention, bench_attention_quantised
    offered = [t for bench in benches for t in bench.tunables(torch.device("cuda"))]
    (tunable,) = (t for t in offered if (t.op, t.shape) == (op, shape))
    assert got_op == op
    assert all(candidate.keys() == tile.keys() for candidate in tunable.candidates)
    if op != "attention_prefill_described":
        assert tile in tunable.candidates
