"""Lengths and arrivals: a function of the seed, and of the right distribution."""

import itertools

import pytest

from pagoda_cli.bench.config import BenchConfig
from pagoda_cli.bench.errors import UsageError
from pagoda_cli.bench.trace_file import TraceEntry
from pagoda_cli.bench.workload import (
    LengthRange,
    planned_requests,
    poisson_offsets,
    replayed_requests,
)

LENGTH = LengthRange(10, 20)


def test_poisson_is_a_function_of_the_seed() -> None:
    first, again, other = (
        list(itertools.islice(poisson_offsets(5.0, seed), 50)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_poisson_has_its_rate_and_spread() -> None:
    offsets = list(itertools.islice(poisson_offsets(5.0, 0), 20_000))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *offsets])]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.03)
    assert variance == pytest.approx(0.04, rel=0.06)


def test_planned_requests_are_a_function_of_the_seed() -> None:
    def plan(seed: int, rate: float | None) -> list[object]:
        requests = planned_requests(prompt=LENGTH, output=LENGTH, seed=seed, rate=rate)
        return list(itertools.islice(requests, 20))

    assert plan(3, 2.0) == plan(3, 2.0)
    assert plan(3, 2.0) != plan(4, 2.0)


def test_closed_loop_is_due_at_once_and_has_the_open_loops_lengths() -> None:
    closed, opened = (
        list(
            itertools.islice(planned_requests(prompt=LENGTH, output=LENGTH, seed=0, rate=rate), 20)
        )
        for rate in (None, 1.0)
    )
    assert {request.due_seconds for request in closed} == {None}
    assert [r.num_prompt_tokens for r in closed] == [r.num_prompt_tokens for r in opened]


def test_lengths_cover_the_range() -> None:
    requests = itertools.islice(
        planned_requests(prompt=LENGTH, output=LENGTH, seed=0, rate=None), 500
    )
    assert {request.num_prompt_tokens for request in requests} == set(range(10, 21))


def test_replay_scales_pace_and_lengths() -> None:
    entries = [TraceEntry(0.0, 1000, 100, (1, 2)), TraceEntry(3.0, 5, 1, (1,))]
    first, second = replayed_requests(entries, speed=2.0, scale=0.1)
    assert (first.num_prompt_tokens, first.num_output_tokens, first.hash_ids) == (100, 10, (1, 2))
    assert second.due_seconds == 1.5
    assert (second.num_prompt_tokens, second.num_output_tokens) == (1, 1)


def test_length_range_forms() -> None:
    assert LengthRange.parse("128", name="--x") == LengthRange(128, 128)
    assert LengthRange.parse("64-512", name="--x") == LengthRange(64, 512)


@pytest.mark.parametrize("text", ["", "x", "5-", "9-3", "0", "1-2-3", "-4"])
def test_bad_length_names_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--x"):
        LengthRange.parse(text, name="--x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no pace"),
        ({"concurrency": 1, "rate": 2.0}, "--concurrency and --rate"),
        ({"concurrency": 1, "send_ids": True, "api": "chat"}, "--send-ids"),
        ({"concurrency": 1, "num_requests": None}, "--requests"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BenchConfig(prompt_tokens=LENGTH, output_tokens=LENGTH, **{"num_requests": 1, **options})
