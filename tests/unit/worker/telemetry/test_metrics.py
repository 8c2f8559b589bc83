"""What a step adds to a worker's counters."""

from prometheus_client import CollectorRegistry

from pagoda_engine import StepStats
from pagoda_worker.telemetry.metrics import WorkerMetrics


def test_each_token_that_a_step_prefills_has_one_cause() -> None:
    registry = CollectorRegistry()
    WorkerMetrics(registry).count_step(
        StepStats(
            num_prefill_tokens=100,
            num_forced_tokens=1,
            num_resumed_tokens=20,
            num_failed_over_tokens=30,
        )
    )
    name = "pagoda_other_prefill_tokens_total"
    causes = ("grammar", "preemption", "failover")
    assert registry.get_sample_value("pagoda_prefill_tokens_total") == 49
    assert [registry.get_sample_value(name, {"cause": cause}) for cause in causes] == [1, 20, 30]
