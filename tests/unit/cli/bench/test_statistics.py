"""Percentiles, goodput and rates, against numpy and by hand."""

import random
from array import array

import numpy as np
import pytest

from pagoda_cli.bench.client import Outcome
from pagoda_cli.bench.results import ResultRecorder, Slo
from pagoda_cli.bench.statistics import Samples, percentile


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101, 1000])
@pytest.mark.parametrize("percent", [0, 1, 50, 95, 99, 100])
def test_percentile_is_numpys(count: int, percent: float) -> None:
    values = sorted(random.Random(count).expovariate(1.0) for _ in range(count))
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_samples_report_milliseconds() -> None:
    values = [random.Random(7).random() for _ in range(100)]
    samples = Samples()
    samples.extend(values)
    distribution = samples.distribution_ms()
    assert distribution is not None
    assert distribution.p95 == pytest.approx(1e3 * np.percentile(values, 95))
    assert distribution.mean == pytest.approx(1e3 * np.mean(values))
    assert (distribution.min, distribution.max) == (1e3 * min(values), 1e3 * max(values))


def test_samples_are_bounded_and_stay_a_fair_sample() -> None:
    samples = Samples(max_samples=2000)
    samples.extend(index / 100_000 for index in range(100_000))
    distribution = samples.distribution_ms()
    assert distribution is not None
    assert distribution.num_samples == 100_000
    assert distribution.mean == pytest.approx(500, abs=0.1)
    assert distribution.p50 == pytest.approx(500, abs=50)


def test_no_samples_have_no_distribution() -> None:
    assert Samples().distribution_ms() is None


def outcome(*, ttft_ms: float, tpot_ms: float, num_tokens: int = 11) -> Outcome:
    return Outcome(
        ttft_seconds=ttft_ms / 1e3,
        e2e_seconds=(ttft_ms + tpot_ms * (num_tokens - 1)) / 1e3,
        num_prompt_tokens=5,
        num_output_tokens=num_tokens,
        num_events=num_tokens,
        counted_by="usage",
        gaps_seconds=array("d", [tpot_ms / 1e3] * (num_tokens - 1)),
    )


def test_tpot_is_the_time_after_the_first_token_per_further_token() -> None:
    assert outcome(ttft_ms=100, tpot_ms=20).tpot_seconds == pytest.approx(0.020)


def test_single_token_has_no_tpot() -> None:
    assert outcome(ttft_ms=100, tpot_ms=20, num_tokens=1).tpot_seconds is None


def test_goodput_counts_failures_as_misses() -> None:
    recorder = ResultRecorder(slo=Slo(ttft_ms=200, tpot_ms=30))
    recorder.add(outcome(ttft_ms=100, tpot_ms=20))
    recorder.add(outcome(ttft_ms=300, tpot_ms=20))
    recorder.add(outcome(ttft_ms=100, tpot_ms=40))
    recorder.add(Outcome(failure="http_429", message="full"))
    goodput = recorder.results(2.0).goodput
    assert goodput is not None
    assert goodput.ratio == 0.25
    assert goodput.requests_per_second == 0.5


@pytest.mark.parametrize(
    ("slo", "is_met"),
    [
        (Slo(), True),
        (Slo(ttft_ms=100), True),
        (Slo(ttft_ms=99), False),
        (Slo(tpot_ms=21), True),
        (Slo(tpot_ms=19), False),
        (Slo(ttft_ms=99, tpot_ms=21), False),
    ],
)
def test_slo(slo: Slo, is_met: bool) -> None:
    assert slo.is_met(outcome(ttft_ms=100, tpot_ms=20)) is is_met


def test_no_objective_no_goodput() -> None:
    assert ResultRecorder().results(1.0).goodput is None


def test_failures_are_counted_by_kind_and_keep_out_of_the_latencies() -> None:
    recorder = ResultRecorder()
    recorder.add(outcome(ttft_ms=100, tpot_ms=20))
    for kind in ("http_429", "http_503", "http_503", "timeout"):
        recorder.add(Outcome(failure=kind, message="m", ttft_seconds=9.0, num_output_tokens=99))
    results = recorder.results(1.0)
    assert results.failures == {"http_503": 2, "http_429": 1, "timeout": 1}
    assert (results.num_requests, results.num_ok, results.num_failed) == (5, 1, 4)
    assert results.failure_ratio == pytest.approx(0.8)
    assert results.shed_ratio == pytest.approx(0.6)
    assert results.ttft_ms is not None
    assert results.ttft_ms.max == pytest.approx(100)
    assert results.num_output_tokens == 11


def test_rates() -> None:
    recorder = ResultRecorder()
    for _ in range(4):
        recorder.add(outcome(ttft_ms=100, tpot_ms=20))
    results = recorder.results(2.0)
    assert results.requests_per_second == 2
    assert results.output_tokens_per_second == 22
    assert results.total_tokens_per_second == 32


def test_example_messages_are_few_and_different() -> None:
    recorder = ResultRecorder()
    for index in range(100):
        recorder.add(Outcome(failure="timeout", message=f"m{index % 50}"))
    assert recorder.results(1.0).failure_examples == [f"timeout: m{index}" for index in range(5)]
