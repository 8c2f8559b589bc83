"""Adds up outcomes: latencies, rates, failures by kind, goodput. Memory is bounded."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from pagoda_cli.bench.client import Outcome
from pagoda_cli.bench.statistics import Distribution, Samples

MAX_EXAMPLE_MESSAGES = 5
SHED_KINDS = frozenset({"http_429", "http_503", "http_529"})


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good request meets; None: not asked."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether anything is asked."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def is_met(self, outcome: Outcome) -> bool:
        """Whether a complete `outcome` is good. A single token has no TPOT and meets any."""
        ttft, tpot = outcome.ttft_seconds, outcome.tpot_seconds
        if self.ttft_ms is not None and (ttft is None or ttft * 1e3 > self.ttft_ms):
            return False
        return self.tpot_ms is None or tpot is None or tpot * 1e3 <= self.tpot_ms


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met the objectives; failed and shed ones are misses."""

    slo_ttft_ms: float | None
    slo_tpot_ms: float | None
    requests_per_second: float
    ratio: float  # of all requests that ended


@dataclass(frozen=True, slots=True)
class Results:
    """What a run is reported as. Latencies cover complete requests: read `failure_ratio` first."""

    duration_seconds: float
    num_requests: int  # ended: complete or failed
    num_ok: int
    num_failed: int
    failures: dict[str, int]
    failure_ratio: float
    shed_ratio: float  # refused with 429, 503 or 529
    failure_examples: list[str]
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    tokens_per_event: float
    output_counted_by: dict[str, int]
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    itl_ms: Distribution | None
    e2e_ms: Distribution | None
    goodput: Goodput | None
    num_interrupted: int = 0  # still running when the run was ended by Ctrl-C; counted nowhere else
    max_start_lag_ms: float = 0.0  # open loop: how late a request left, at worst
    client_cpu_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return asdict(self)


@dataclass(slots=True)
class ResultRecorder:
    """Takes outcomes as they come."""

    slo: Slo = field(default_factory=Slo)
    num_ok: int = 0
    num_good: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_events: int = 0
    max_start_lag_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    counted_by: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    ttft: Samples = field(default_factory=Samples)
    tpot: Samples = field(default_factory=Samples)
    itl: Samples = field(default_factory=Samples)
    e2e: Samples = field(default_factory=Samples)

    @property
    def num_failed(self) -> int:
        """Failed requests of every kind."""
        return self.failures.total()

    def add(self, outcome: Outcome) -> None:
        """Take one ended request."""
        if outcome.failure:
            self.failures[outcome.failure] += 1
            example = f"{outcome.failure}: {outcome.message}"
            if len(self.examples) < MAX_EXAMPLE_MESSAGES and example not in self.examples:
                self.examples.append(example)
            return
        self.num_ok += 1
        self.num_good += self.slo.is_met(outcome)
        self.num_prompt_tokens += outcome.num_prompt_tokens
        self.num_cached_tokens += outcome.num_cached_tokens
        self.num_output_tokens += outcome.num_output_tokens
        self.num_events += outcome.num_events
        self.counted_by[outcome.counted_by] += 1
        if outcome.ttft_seconds is not None:
            self.ttft.add(outcome.ttft_seconds)
        if outcome.tpot_seconds is not None:
            self.tpot.add(outcome.tpot_seconds)
        self.itl.extend(outcome.gaps_seconds)
        self.e2e.add(outcome.e2e_seconds)

    def results(
        self, duration_seconds: float, *, num_interrupted: int = 0, client_cpu_seconds: float = 0.0
    ) -> Results:
        """Return the report of a run that took `duration_seconds`."""
        num_requests = self.num_ok + self.num_failed
        seconds = max(duration_seconds, 1e-9)
        num_shed = sum(count for kind, count in self.failures.items() if kind in SHED_KINDS)
        return Results(
            duration_seconds=duration_seconds,
            num_requests=num_requests,
            num_ok=self.num_ok,
            num_failed=self.num_failed,
            failures=dict(self.failures.most_common()),
            failure_ratio=self.num_failed / max(num_requests, 1),
            shed_ratio=num_shed / max(num_requests, 1),
            failure_examples=list(self.examples),
            requests_per_second=self.num_ok / seconds,
            output_tokens_per_second=self.num_output_tokens / seconds,
            total_tokens_per_second=(self.num_prompt_tokens + self.num_output_tokens) / seconds,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            tokens_per_event=self.num_output_tokens / max(self.num_events, 1),
            output_counted_by=dict(self.counted_by),
            ttft_ms=self.ttft.distribution_ms(),
            tpot_ms=self.tpot.distribution_ms(),
            itl_ms=self.itl.distribution_ms(),
            e2e_ms=self.e2e.distribution_ms(),
            goodput=self._goodput(num_requests, seconds),
            num_interrupted=num_interrupted,
            max_start_lag_ms=1e3 * self.max_start_lag_seconds,
            client_cpu_seconds=client_cpu_seconds,
        )

    def _goodput(self, num_requests: int, seconds: float) -> Goodput | None:
        if not self.slo.is_set:
            return None
        return Goodput(
            slo_ttft_ms=self.slo.ttft_ms,
            slo_tpot_ms=self.slo.tpot_ms,
            requests_per_second=self.num_good / seconds,
            ratio=self.num_good / max(num_requests, 1),
        )
