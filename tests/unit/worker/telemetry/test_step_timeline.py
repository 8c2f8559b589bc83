"""Steps as metrics, and one in N as a trace, seen by a real OTLP collector."""

import itertools
import random
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry
from support.otlp_sink import OtlpSink, SinkSpan, otlp_sink

from pagoda_engine import (
    ComputedBlocks,
    SamplingParams,
    SequenceOutput,
    SequenceRequest,
    StepResult,
    StepStats,
)
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.telemetry.tracing import extract, setup_telemetry, shutdown_telemetry
from pagoda_worker.sequences import LiveSequence, SequenceTable
from pagoda_worker.telemetry.metrics import STEP_PARTS, WorkerMetrics
from pagoda_worker.telemetry.step_timeline import MAX_LINKS, StepTimeline

UNIX_SECONDS = 1_700_000_000.0
NOTHING_KNOWN = SequenceTable()
STATS = StepStats(
    num_sequences=3,
    num_prefill_tokens=40,
    num_decode_tokens=2,
    num_context_tokens=900,
    num_preempted=1,
    started=100.0,
    schedule_seconds=0.001,
    launch_seconds=0.002,
    forward_seconds=0.010,
    sample_seconds=0.003,
    wait_seconds=0.012,
    commit_seconds=0.004,
    gap_seconds=0.0005,
    is_graph=True,
)


class Host:
    """A timeline whose clock stands still unless a test moves it."""

    def __init__(self, trace_interval: int) -> None:
        self.now = 0.0  # of the engine's clock
        self.registry = CollectorRegistry()
        self.timeline = StepTimeline(
            "decode-1",
            "e1",
            WorkerMetrics(self.registry),
            trace_interval=trace_interval,
            clock=lambda: UNIX_SECONDS + self.now,
            engine_clock=lambda: self.now,
        )

    def step(
        self,
        stats: StepStats,
        *,
        arrived: float = 0.0,
        ended: float = 0.0,
        result: StepResult | None = None,
        sequences: SequenceTable = NOTHING_KNOWN,
    ) -> None:
        self.now = arrived
        self.timeline.begin(result or StepResult(stats=stats), sequences)
        self.now = ended
        self.timeline.end(stats)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpSink]:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        setup_telemetry("decode", CommonSettings(), instance_id="decode-1")
        yield sink
        shutdown_telemetry()


def exported(sink: OtlpSink) -> list[SinkSpan]:
    shutdown_telemetry()
    return sink.spans


def test_every_part_is_counted_and_steps_without_work_are_not() -> None:
    host = Host(trace_interval=0)
    host.step(STATS, arrived=100.02, ended=100.025)
    host.step(StepStats(num_preempted=1), arrived=101.0, ended=102.0)

    sums = {part: host.metric("pagoda_step_part_seconds_sum", part=part) for part in STEP_PARTS}

    assert sums == pytest.approx(
        {
            "schedule": 0.001,
            "launch": 0.002,
            "forward": 0.010,
            "sample": 0.003,
            "wait": 0.012,
            "commit": 0.004,
            "gap": 0.0005,
            "publish": 0.005,
        }
    )
    assert host.metric("pagoda_step_part_seconds_count", part="publish") == 1
    assert host.metric("pagoda_step_seconds_sum") == pytest.approx(STATS.seconds)
    assert host.metric("pagoda_step_sequences_sum") == 3
    assert host.metric("pagoda_steps_total", mode="graph") == 1
    assert host.metric("pagoda_steps_total", mode="eager") == 0


def test_a_traced_step_is_a_tree_of_its_own_on_the_wall_clock(sink: OtlpSink) -> None:
    host = Host(trace_interval=1)
    host.step(STATS, arrived=100.020, ended=100.025)

    spans = {span.name: span for span in exported(sink)}
    root = spans.pop("worker.step")

    assert root.parent_span_id == ""
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    begun = UNIX_SECONDS + 100.0
    expected = {
        "worker.step": (0.0, 0.025),
        "step.schedule": (0.0, 0.001),
        "step.launch": (0.001, 0.003),
        "step.forward": (0.003, 0.013),
        "step.sample": (0.013, 0.016),
        "step.publish": (0.020, 0.025),
    }
    assert set(spans) | {"worker.step"} == set(expected)
    for span in (root, *spans.values()):
        start, end = expected[span.name]
        assert span.start_unix_seconds - begun == pytest.approx(start, abs=2e-6)
        assert span.end_unix_seconds - begun == pytest.approx(end, abs=2e-6)
    assert root.attributes == {
        "pagoda.worker_id": "decode-1",
        "pagoda.epoch": "e1",
        "pagoda.step.number": 1,
        "pagoda.step.sequences": 3,
        "pagoda.step.prefill_tokens": 40,
        "pagoda.step.decode_tokens": 2,
        "pagoda.step.proposed_tokens": 0,
        "pagoda.step.accepted_tokens": 0,
        "pagoda.step.context_tokens": 900,
        "pagoda.step.preempted": 1,
        "pagoda.step.is_graph": True,
        "pagoda.step.gap_ms": 0.5,
        "pagoda.step.draft_ms": 0.0,
        "pagoda.step.wait_ms": 12.0,
        "pagoda.step.commit_ms": 4.0,
    }


def test_device_work_launched_ahead_follows_the_work_before_it(sink: OtlpSink) -> None:
    """The host queues each step 7 ms before the device has done the one before."""
    host = Host(trace_interval=1)
    for number in range(20):
        launched = 10.0 + 0.010 * number - (0.008 if number else 0.0)
        stats = StepStats(
            num_sequences=1,
            started=launched - 0.002,
            schedule_seconds=0.001,
            launch_seconds=0.001,
            forward_seconds=0.008,
            sample_seconds=0.001,
            gap_seconds=0.001 if number else 0.0,
        )
        arrived = 10.009 + 0.010 * number
        host.step(stats, arrived=arrived, ended=arrived)

    spans = exported(sink)
    forwards = sorted(s.start_unix_seconds for s in spans if s.name == "step.forward")
    samples = sorted(s.end_unix_seconds for s in spans if s.name == "step.sample")

    gaps = [start - end for end, start in zip(samples, forwards[1:], strict=False)]
    assert gaps == pytest.approx([0.001] * 19, abs=2e-6)


def test_device_work_ends_before_its_result_comes(sink: OtlpSink) -> None:
    host = Host(trace_interval=1)
    host.step(STATS, arrived=100.014, ended=100.014)

    spans = {span.name: span for span in exported(sink)}

    ended = spans["step.sample"].end_unix_seconds - UNIX_SECONDS
    assert ended == pytest.approx(100.014, abs=2e-6)


@pytest.mark.parametrize("interval", [1, 3, 7])
def test_exactly_one_step_in_n_is_traced(sink: OtlpSink, interval: int) -> None:
    host, rng = Host(interval), random.Random(4)
    num_steps = 0
    for _ in range(100):
        has_work = rng.random() < 0.7
        num_steps += has_work
        host.step(STATS if has_work else StepStats(), arrived=100.02, ended=100.02)

    roots = [span for span in exported(sink) if span.name == "worker.step"]

    assert [root.attributes["pagoda.step.number"] for root in roots] == list(
        range(interval, num_steps + 1, interval)
    )


def test_no_interval_no_traces(sink: OtlpSink) -> None:
    host = Host(trace_interval=0)
    for _ in range(10):
        host.step(STATS, arrived=100.02, ended=100.02)
    assert exported(sink) == []


def live(number: int) -> LiveSequence:
    """A sequence of a request whose gateway span is (number, number + 1) in hexadecimal."""
    sequence_id = f"r{number}.0.0"
    trace_id, span_id = f"{number + 1:032x}", f"{number + 2:016x}"
    return LiveSequence(
        sequence_id=sequence_id,
        request_id=f"r{number}",
        sequence_index=0,
        attempt=0,
        gateway_id="g",
        context=extract({"traceparent": f"00-{trace_id}-{span_id}-01"}),
        deadline=0.0,
        request=SequenceRequest(sequence_id, (1,), (), bytes(16), SamplingParams(max_tokens=1)),
    )


def table_of(sequences: list[LiveSequence]) -> SequenceTable:
    table = SequenceTable()
    for sequence in sequences:
        table.add(sequence)
    return table


def test_a_step_and_its_requests_have_links_to_each_other(sink: OtlpSink) -> None:
    with_token, with_blocks, idle = sequences = [live(number) for number in range(3)]
    result = StepResult(
        outputs=(
            SequenceOutput(with_token.sequence_id, 0, (7,)),
            SequenceOutput(idle.sequence_id, 0, ()),  # aborted: the step computed nothing of it
            SequenceOutput("unknown", 0, (7,)),
        ),
        computed=(ComputedBlocks(with_blocks.sequence_id, 0, (1,)),),
        stats=STATS,
    )
    host = Host(trace_interval=1)
    host.step(STATS, arrived=100.02, ended=100.02, result=result, sequences=table_of(sequences))

    (root,) = (span for span in exported(sink) if span.name == "worker.step")

    assert root.links == ((f"{1:032x}", f"{2:016x}"), (f"{2:032x}", f"{3:016x}"))
    for sequence in (with_token, with_blocks):
        (link,) = sequence.step_links
        assert f"{link.context.trace_id:032x}" == root.trace_id
        assert f"{link.context.span_id:016x}" == root.span_id
    assert idle.step_links == []


def test_links_are_bounded_on_both_sides_and_shared_out(sink: OtlpSink) -> None:
    sequences = [live(number) for number in range(2 * MAX_LINKS)]
    outputs = tuple(SequenceOutput(s.sequence_id, 0, (7,)) for s in sequences)
    host, table = Host(trace_interval=1), table_of(sequences)
    for num_steps in range(1, 4 * MAX_LINKS):
        result = StepResult(outputs=outputs, stats=STATS)
        host.step(STATS, arrived=100.02, ended=100.02, result=result, sequences=table)
        num_links = [len(s.step_links) for s in sequences]
        assert max(num_links) <= min(MAX_LINKS, min(num_links) + 1)
        assert sum(num_links) == min(MAX_LINKS * num_steps, MAX_LINKS * len(sequences))

    roots = [span for span in exported(sink) if span.name == "worker.step"]

    assert {len(root.links) for root in roots} == {MAX_LINKS}


def test_a_request_without_a_trace_gets_no_link(sink: OtlpSink) -> None:
    sequence = live(0)
    sequence.context = trace.set_span_in_context(trace.INVALID_SPAN)
    result = StepResult(outputs=(SequenceOutput(sequence.sequence_id, 0, (7,)),), stats=STATS)
    host = Host(trace_interval=1)
    host.step(STATS, arrived=100.02, ended=100.02, result=result, sequences=table_of([sequence]))

    assert [span.links for span in exported(sink)] == [()] * 6


def test_without_telemetry_sequences_get_no_links() -> None:
    sequence = live(0)
    result = StepResult(outputs=(SequenceOutput(sequence.sequence_id, 0, (7,)),), stats=STATS)
    host, table = Host(trace_interval=1), table_of([sequence])
    for _ in itertools.repeat(None, 3):
        host.step(STATS, arrived=100.02, ended=100.02, result=result, sequences=table)
    assert sequence.step_links == []
