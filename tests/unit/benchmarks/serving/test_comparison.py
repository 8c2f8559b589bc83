from dataclasses import replace

import pytest
from driving.load import Load
from peers.comparison import Comparison

LOAD = Load(concurrency=1, num_requests=2, prompt_tokens=8, output_tokens=10)


def test_ratio_is_to_the_best_peer_of_each_repetition(comparison):
    ratio = comparison.ratio("c=1", "Pagoda", "output_tokens_per_second", more_is_better=True)
    assert ratio.values == pytest.approx((20 / 10, 20 / 40, 20 / 40))
    assert ratio.median == pytest.approx(0.5)


def test_less_is_better_for_latencies(comparison):
    ratio = comparison.ratio("c=1", "Pagoda", "ttft_ms", more_is_better=False)
    assert ratio.values == pytest.approx((0.1 / 0.2, 0.1 / 0.05, 0.1 / 0.05))


def test_the_best_peer_is_never_pagoda(comparison):
    ratio = comparison.ratio("c=1", "One", "output_tokens_per_second", more_is_better=True)
    assert ratio.values == pytest.approx((1.0, 20 / 40, 1.0))


def test_no_peer_no_ratio(make_run):
    alone = Comparison(repeats=3, fraction=1)
    alone.add("c=1", LOAD, "Pagoda", 0, make_run(), is_ours=True)
    assert alone.ratio("c=1", "Pagoda", "ttft_ms", more_is_better=False) is None
    assert alone.sections()[0].rows[0][:3] == ["Pagoda", "20.0 (20.0-20.0)", "-"]


def test_a_server_that_missed_a_repetition_has_ratios_of_the_others(comparison, make_run):
    comparison.add("c=1", LOAD, "Late", 2, make_run(seconds=1.0), is_ours=True)
    ratio = comparison.ratio("c=1", "Late", "output_tokens_per_second", more_is_better=True)
    assert ratio.values == pytest.approx((0.5,))


def test_a_run_without_answers_is_reported_and_counts_nowhere(comparison, make_run):
    dead = make_run(num_ok=0, num_failed=2)
    comparison.add("c=8", LOAD, "Pagoda", 0, make_run(), is_ours=True)
    comparison.add("c=8", LOAD, "Dead", 0, dead, is_ours=False)
    assert comparison.spread("c=8", "Dead", "ttft_ms") is None
    assert comparison.ratio("c=8", "Pagoda", "ttft_ms", more_is_better=False) is None
    row = comparison.sections()[1].rows[1]
    assert row[:3] == ["Dead", "-", "-"]
    assert row[-1] == "2/2"


def test_a_quiet_whole_run_has_no_remark(comparison):
    assert comparison.remarks() == []


@pytest.mark.parametrize(
    ("options", "run", "remark"),
    [
        ({"repeats": 2}, {}, "2 repetition(s), 3 are the least"),
        ({"fraction": 0.25}, {}, "only 0.25 of each load's requests"),
        ({}, {"foreign": 5.1}, "more than 5 % of the machine in 1 of 1 runs, up to 5 %"),
        ({}, {"steal": 30.0}, "in 1 of 1 runs, up to 30 %"),
    ],
)
def test_what_is_no_measurement_says_so(make_run, options, run, remark):
    made = Comparison(**{"repeats": 3, "fraction": 1, **options})
    made.add("c=1", LOAD, "Pagoda", 0, make_run(**run), is_ours=True)
    assert len(made.remarks()) == 1
    assert remark in made.remarks()[0]
    assert made.as_dict()["remarks"] == made.remarks()


def test_loud_runs_are_marked_in_the_table_and_in_json(make_run):
    made = Comparison(repeats=3, fraction=1)
    made.add("c=1", LOAD, "Pagoda", 0, make_run(foreign=7.0), is_ours=True)
    assert "**7.0**" in made.sections()[0].rows[0]
    assert made.as_dict()["runs"][0]["is_loud"]


def test_shared_prefix_is_in_the_title(make_run):
    made = Comparison(repeats=3, fraction=1)
    load = replace(LOAD, prefix_tokens=1024)
    made.add("prefix", load, "Pagoda", 0, make_run(), is_ours=True)
    assert "1024 shared + 8 prompt" in made.sections()[0].title
