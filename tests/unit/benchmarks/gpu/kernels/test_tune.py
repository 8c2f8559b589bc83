import importlib

import pytest
import torch
from gpu.harness.deadline import Deadline
from gpu.harness.timing import Timing
from gpu.kernels.cases import bench_paged_attention
from gpu.kernels.tunable import Tunable, tiles
from gpu.kernels.tune import search, summary

from pagoda_kernels.tuning import TileTable

DEFAULT = {"BLOCK_N": 1}


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


def make_tunable(make_case, table, *, right=(16, 32, 64)):
    def current():
        return table.lookup("op", "shape", DEFAULT)["BLOCK_N"]

    def check(seed):
        if current() == 128:
            raise RuntimeError("out of resource: shared memory")
        return 0.0 if current() in right else float("nan")

    case = make_case(check=check, build=lambda: current)
    return Tunable("op", "shape", case, tiles(BLOCK_N=(16, 32, 64, 128)))


def test_keeps_the_fastest_right_tile(make_case, table):
    tunable = make_tunable(make_case, table, right=(16, 64))
    trials = search(tunable, table, FollowingClock({16: 3.0, 32: 1.0, 64: 2.0}), Deadline(60))
    assert table.lookup("op", "shape", DEFAULT) == {"BLOCK_N": 64}
    assert [trial.seconds for trial in trials] == [3.0, None, 2.0, None]
    assert "out of resource" in trials[3].reason
    assert "4 of 4 tried, best {'BLOCK_N': 64}" in summary(tunable, trials)


def test_leaves_the_default_where_nothing_is_right(make_case, table):
    tunable = make_tunable(make_case, table, right=())
    trials = search(tunable, table, FollowingClock({}), Deadline(60))
    assert table.lookup("op", "shape", DEFAULT) == DEFAULT
    assert "none right" in summary(tunable, trials)


def test_stops_when_time_is_up(make_case, table):
    assert search(make_tunable(make_case, table), table, FollowingClock({}), Deadline(0)) == []
    assert table.lookup("op", "shape", DEFAULT) == DEFAULT


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
        ("attention_decode", "decode", (128, 2)),
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
    offered = bench_paged_attention.tunables(torch.device("cuda"))
    (tunable,) = (t for t in offered if (t.op, t.shape) == (op, shape))
    assert got_op == op
    assert all(candidate.keys() == tile.keys() for candidate in tunable.candidates)
    if op != "attention_prefill_described":
        assert tile in tunable.candidates
