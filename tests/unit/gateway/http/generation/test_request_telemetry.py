"""What is counted of a generation that a limit refused."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway.errors import RateLimitError
from pagoda_gateway.http.generation.request_telemetry import count


def refused(tier: str, retry_after_seconds: float | None) -> Any:
    return SimpleNamespace(
        identity=SimpleNamespace(endpoint="completions", service_tier=tier),
        failure=RateLimitError("no room", retry_after_seconds=retry_after_seconds),
        ttft_seconds=None,
        sequences=[],
    )


def grown(name: str, generation: Any, **labels: str) -> float:
    def value() -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    before = value()
    count(generation, UsageClose(outcome="refused", e2e_ms=3.0))
    return value() - before


@pytest.mark.parametrize(
    ("tier", "retry_after_seconds", "number"),
    [("default", 1.0, 1), ("default", None, 1), ("batch", None, 1), ("batch", 1.0, 0)],
)
def test_a_line_of_a_batch_that_waits_is_not_refused(
    tier: str, retry_after_seconds: float | None, number: int
) -> None:
    generation = refused(tier, retry_after_seconds)
    labels = {"endpoint": "completions", "outcome": "refused"}
    assert grown("pagoda_requests_total", generation, **labels) == number


def test_what_is_refused_took_no_time() -> None:
    assert grown("pagoda_request_seconds_count", refused("default", 1.0)) == 0
