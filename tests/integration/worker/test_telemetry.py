"""Spans, KV events and heartbeats of one request."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from support.fake_prefill import FakePrefill
from support.otlp_sink import otlp_sink
from support.span_files import read_spans
from support.worker_cluster import Cluster

from pagoda.rpc.v1 import kv_event_pb2, status_pb2
from pagoda_engine import SamplingParams
from pagoda_runtime.block_hash import split_hashes
from pagoda_runtime.messaging import subjects
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry, tracer
from pagoda_worker import worker

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


def counts(span: dict[str, Any], of: str) -> dict[str, int]:
    """Return how often each limit was one."""
    prefix = f"pagoda.{of}."
    found = span["attributes"].items()
    return {key.removeprefix(prefix): value for key, value in found if key.startswith(prefix)}


REMOTE = {
    "prefill.queue",
    "kv.fetch",
    "prefill.compute",
    "kv.transfer",
    "decode.queue",
    "decode.generate",
}


@pytest.mark.parametrize(
    ("prefill_worker_id", "expected"),
    [
        ("prefill-1", REMOTE),
        ("", REMOTE - {"kv.transfer"}),
        ("prefill-nowhere", REMOTE - {"kv.transfer"}),
    ],
)
async def test_every_stage_is_a_span_under_the_gateways(
    cluster: Cluster, tmp_path: Path, prefill_worker_id: str, expected: set[str]
) -> None:
    await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    common = cluster.common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("test", common, instance_id="1")
    try:
        parent = tracer().start_span("gateway.request")
        answer = await cluster.generate(
            "decode-1",
            PROMPT,
            prefill_worker_id=prefill_worker_id,
            context=trace.set_span_in_context(parent),
        )
        await answer.finished()
        parent.end()
    finally:
        shutdown_telemetry()

    assert (tmp_path / "traces" / "test-1.jsonl").is_file()
    written = read_spans(tmp_path / "traces")
    spans = {span["name"]: span for span in written}
    root = spans.pop("gateway.request")
    assert set(spans) == expected
    assert len(written) == len(expected) + 1
    assert {span["trace_id"] for span in spans.values()} == {root["trace_id"]}
    assert {span["parent_span_id"] for span in spans.values()} == {root["span_id"]}
    assert all(s["end_unix_seconds"] >= s["start_unix_seconds"] for s in spans.values())
    generate = spans["decode.generate"]["attributes"]
    assert generate["pagoda.output_tokens"] == (11 if "kv.transfer" in expected else 12)
    assert counts(spans["prefill.compute"], "chunks") == {"step_tokens": 3, "end_of_prompt": 1}
    assert counts(spans["decode.generate"], "chunks") == {}, "of nothing that was preempted"


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_speculation_is_counted_and_traced(
    cluster: Cluster, tmp_path: Path, prefill_worker_id: str
) -> None:
    cluster.common = cluster.common.model_copy(update={"speculation": "ngram"})
    worker = await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    common = cluster.common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("test", common, instance_id="1")
    few = SamplingParams(
        max_tokens=100, temperature=0.0, ignore_eos=True, logit_bias={30: 60.0, 31: 60.0}
    )
    try:
        answer = await cluster.generate(
            "decode-1", [30, 31] * 8, prefill_worker_id=prefill_worker_id, sampling=few
        )
        await answer.finished()
        await cluster.idle(worker)
    finally:
        shutdown_telemetry()

    assert len(answer.token_ids) == 100
    proposed = worker.metric("pagoda_speculation_proposed_tokens_total")
    accepted = worker.metric("pagoda_speculation_accepted_tokens_total")
    assert 10 < accepted <= proposed
    assert answer.last is not None
    assert answer.last.num_proposed_tokens == proposed
    assert answer.last.num_accepted_tokens == accepted
    assert max(frame.num_accepted_tokens for frame in answer.frames[:-1]) > 0, "said on the way"
    status = await cluster.status("decode-1", lambda s: s.speed.accepted_per_decode > 0)
    assert status.speed.accepted_per_decode <= status.speed.proposed_per_decode <= 7
    num_tokens = 99 if prefill_worker_id else 100
    num_decoded = worker.metric("pagoda_decode_tokens_total")
    assert num_decoded == num_tokens, "the first one too, where it is sampled"
    (span,) = (s for s in read_spans(tmp_path / "traces") if s["name"] == "decode.generate")
    assert span["attributes"]["pagoda.output_tokens"] == num_tokens
    assert span["attributes"]["pagoda.proposed_tokens"] == proposed
    assert span["attributes"]["pagoda.accepted_tokens"] == accepted
    limits = counts(span, "proposals")
    assert limits.keys() <= {"setting", "nothing_found", "acceptance", "load", "end_of_output"}
    assert "setting" in limits, "as many as are set were verified"
    assert sum(limits.values()) <= 99, "of a step one, at the most"


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_one_step_in_n_is_a_trace_linked_with_its_requests(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, prefill_worker_id: str
) -> None:
    interval = 3
    workers = [await cluster.start_decode("decode-1", step_trace_interval=interval)]
    if prefill_worker_id:
        workers.append(await cluster.start_prefill("prefill-1", step_trace_interval=interval))
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        setup_telemetry("test", cluster.common, instance_id="1")
        try:
            parents = [tracer().start_span("gateway.request") for _ in range(2)]
            answers = [
                await cluster.generate(
                    "decode-1",
                    [number, *PROMPT],
                    prefill_worker_id=prefill_worker_id,
                    context=trace.set_span_in_context(parent),
                )
                for number, parent in enumerate(parents)
            ]
            for answer in answers:
                await answer.finished()
            for parent in parents:
                parent.end()
            await cluster.idle(workers[0])
        finally:
            shutdown_telemetry()
        spans = sink.spans
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    requests = {key for key, span in by_id.items() if span.name == "gateway.request"}
    steps = {key: span for key, span in by_id.items() if span.name == "worker.step"}

    num_steps = [int(worker.metric("pagoda_step_seconds_count")) for worker in workers]
    assert len(steps) == sum(count // interval for count in num_steps) > 0
    for (trace_id, span_id), step in steps.items():
        children = [s for s in spans if s.trace_id == trace_id and s.span_id != span_id]
        assert sorted(child.name for child in children) == [
            f"step.{part}" for part in ("forward", "launch", "publish", "sample", "schedule")
        ]
        assert {child.parent_span_id for child in children} == {span_id}
        assert min(c.start_unix_seconds for c in children) == step.start_unix_seconds
        assert max(c.end_unix_seconds for c in children) == step.end_unix_seconds
        assert set(step.links) <= requests
    # From a step to its requests, and back.
    there = {(request, step) for step, span in steps.items() for request in span.links}
    back = {
        ((span.trace_id, span.parent_span_id), step)
        for span in spans
        if span.name in ("prefill.compute", "decode.generate")
        for step in span.links
    }
    assert there == back
    assert {request for request, _ in there} == requests


async def test_events_say_what_the_pool_holds(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1", num_blocks=12)
    held: set[bytes] = set()
    sequences: list[int] = []

    async def on_events(events: list[kv_event_pb2.KvEvent]) -> None:
        for event in events:
            if event.epoch != cluster.statuses["decode-1"].epoch:
                continue
            sequences.append(event.sequence)
            if event.is_snapshot:
                held.clear()
            held.update(split_hashes(event.stored))
            held.difference_update(split_hashes(event.evicted))
            seen.append(event)

    seen: list[kv_event_pb2.KvEvent] = []
    await cluster.bus.consume(
        subjects.KV_EVENTS_STREAM, "test", kv_event_pb2.KvEvent, on_events, batch=10, in_order=True
    )
    last = None
    for start in (0, 50, 100):
        last = await cluster.generate("decode-1", [(start + i) % 250 for i in range(100)])
        await last.finished()
    await cluster.idle(decode)
    expected = set(split_hashes(last.request.block_hashes))

    await cluster.status("decode-1", lambda _: expected <= held and len(held) <= 12)
    assert sequences == list(range(1, len(sequences) + 1))
    assert seen[0].is_snapshot
    assert seen[0].kv_identity == cluster.statuses["decode-1"].model.kv_identity


def step_ms(status: status_pb2.WorkerStatus) -> float:
    speed = status.speed
    return speed.step_base_ms + speed.step_per_sequence_ms + speed.step_per_context_token_ms


async def test_heartbeat_carries_the_card_and_fitted_speeds(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1")
    for i in range(3):
        answer = await cluster.generate("decode-1", [i, *PROMPT])
        await answer.finished()

    status = await cluster.status(
        "decode-1", lambda s: s.speed.prefill_tokens_per_second > 0 and step_ms(s) > 0
    )

    assert status.model.block_size == 16
    assert status.model.vocab_size == cluster.model.vocab_size
    assert len(status.model.kv_identity) == 16
    assert status.host_id


async def test_gauges_say_what_is_true_at_the_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HOUSEKEEPING_SECONDS", 3600.0)
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    computed = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await computed.first_token()
    imported = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    await fake.next_request()

    assert decode.metric("pagoda_num_requests_running") == 2
    assert decode.metric("pagoda_kv_leases") == 1
    assert decode.metric("pagoda_kv_free_blocks") < 128
    assert 0 < decode.metric("pagoda_kv_cache_usage_ratio") < 1

    for answer in (computed, imported):
        await cluster.cancel("decode-1", answer)
        await answer.finished()
    assert decode.metric("pagoda_num_requests_running") == 0
    assert decode.metric("pagoda_num_requests_waiting") == 0
    assert decode.metric("pagoda_kv_leases") == 0
    assert decode.metric("pagoda_kv_free_blocks") == 128
    assert decode.metric("pagoda_kv_cache_usage_ratio") == 0
