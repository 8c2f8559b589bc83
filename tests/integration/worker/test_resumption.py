"""Preempted sequences get their KV back from the real kvstore, or compute it: what is sooner."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.running_kvstore import running_kvstore
from support.span_files import read_spans
from support.worker_cluster import Answer, Cluster, RunningWorker

from pagoda_engine import SamplingParams, StepCost
from pagoda_engine.scheduler.admission import BLOCKS
from pagoda_engine.scheduler.preemption import GROWTH
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry
from pagoda_worker.heartbeat.status import Speed
from pagoda_worker.sequences import LiveSequence
from pagoda_worker.tiers.client import Fetched
from pagoda_worker.tiers.lower_tiers import LowerTiers

pytestmark = pytest.mark.integration

SAMPLING = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
PROMPTS = [[seed * 7 + i for i in range(30)] for seed in range(1, 15)]
TOO_FEW_BLOCKS = 16  # of the 84 that all of them fill
FAST = StepCost(per_prefill_token=1.0, fetch_base=2.0, per_fetched_block=0.001)
SLOW = StepCost(per_prefill_token=1.0, fetch_base=2.0, per_fetched_block=1000.0)


@pytest.fixture
def traces(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    common = cluster.common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("test", common, instance_id="1")
    yield tmp_path / "traces"
    shutdown_telemetry()


async def generate_all(cluster: Cluster, worker: RunningWorker) -> None:
    """Every output is as undisturbed, though sequences were preempted, and nothing leaks."""
    expected = cluster.alone(PROMPTS, SAMPLING)
    answers = await asyncio.gather(
        *(cluster.generate(worker.worker_id, prompt, sampling=SAMPLING) for prompt in PROMPTS)
    )
    assert [(await answer.finished()).token_ids for answer in answers] == expected
    assert worker.metric("pagoda_preemptions_total") > 0
    await cluster.idle(worker)


def resumptions(traces: Path) -> list[dict[str, Any]]:
    shutdown_telemetry()  # writes what is queued
    every = read_spans(traces)
    queued = [span["attributes"] for span in every if span["name"].endswith(".queue")]
    waits = [attributes.get("pagoda.queue.waited_for", "") for attributes in queued]
    assert any(BLOCKS in wait.split(", ") for wait in waits), waits
    assert not all(waits), "somebody was let in at once"
    spans = [span for span in every if span["name"] == "decode.resume"]
    assert {span["attributes"]["pagoda.resume.preempted_because"] for span in spans} == {GROWTH}
    assert all(s["end_unix_seconds"] >= s["start_unix_seconds"] > 0 for s in spans)
    again = [s["attributes"] for s in every if s["name"] == "decode.generate"]
    chunks = sum(attributes.get("pagoda.chunks.end_of_prompt", 0) for attributes in again)
    assert 0 < chunks <= len(spans), "each computes once more up to its end, if it comes to it"
    return [
        {key.removeprefix("pagoda.resume."): value for key, value in span["attributes"].items()}
        for span in spans
    ]


@pytest.mark.parametrize("write_through", ["reused", "all"])
async def test_what_was_lost_is_fetched_where_that_is_sooner(
    cluster: Cluster,
    tmp_path: Path,
    traces: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_through: str,
) -> None:
    monkeypatch.setattr(Speed, "step_cost", lambda speed, block_bytes: FAST)
    async with running_kvstore(cluster, tmp_path / "store") as store:
        worker = await cluster.start_decode(
            "decode-1",
            num_blocks=TOO_FEW_BLOCKS,
            kvstore_endpoint=store.endpoint,
            write_through=write_through,
        )
        async with asyncio.timeout(60):  # what a busy store has too late is there the next time
            while not (num_fetched := worker.metric("pagoda_resumptions_total", choice="fetch")):
                await generate_all(cluster, worker)
        found = [r for r in resumptions(traces) if r["choice"] == "fetch"]
        assert len(found) == num_fetched > 0
        assert sum(r["fetched_blocks"] for r in found) > 0
        for r in found:
            assert r["fetched_blocks"] <= r["kvstore_blocks"]
            expected = 2.0 + 0.001 * r["kvstore_blocks"]
            assert r["predicted_fetch_ms"] == pytest.approx(1e3 * expected)
            assert r["predicted_compute_ms"] == pytest.approx(16e3 * r["kvstore_blocks"])


async def test_what_was_lost_is_computed_where_that_is_sooner(
    cluster: Cluster, tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speed, "step_cost", lambda speed, block_bytes: SLOW)
    async with running_kvstore(cluster, tmp_path / "store") as store:
        worker = await cluster.start_decode(
            "decode-1",
            num_blocks=TOO_FEW_BLOCKS,
            kvstore_endpoint=store.endpoint,
            write_through="all",
        )
        await generate_all(cluster, worker)

        found = resumptions(traces)
        assert {r["choice"] for r in found} == {"compute"}
        assert worker.metric("pagoda_kv_fetched_blocks_total", tier="cpu") == 0
        assert any(r["kvstore_blocks"] for r in found), "it could have been fetched"


async def test_a_kvstore_that_is_gone_leaves_all_of_it_to_be_computed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speed, "step_cost", lambda speed, block_bytes: FAST)
    monkeypatch.setattr(
        "pagoda_worker.tiers.write_through.WriteThrough.match",
        lambda writer, block_hashes: len(block_hashes),
    )
    async with running_kvstore(cluster, tmp_path / "store") as store:
        worker = await cluster.start_decode(
            "decode-1", num_blocks=TOO_FEW_BLOCKS, kvstore_endpoint=store.endpoint
        )
    await generate_all(cluster, worker)
    assert worker.metric("pagoda_resumptions_total", choice="fetch") > 0
    assert worker.metric("pagoda_kv_fetched_blocks_total", tier="cpu") == 0


async def test_cancels_while_blocks_are_fetched_leak_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: set[str] = set()
    fetch = LowerTiers.fetch

    async def cancel_and_fetch(
        tiers: LowerTiers, sequence: LiveSequence, *args: Any, **kwargs: Any
    ) -> Fetched:
        if sequence.sequence_index == 0 and len(cancelled) < 2:
            cancelled.add(sequence.request_id)
            await cluster.cancel("decode-1", answers[sequence.request_id])
        return await fetch(tiers, sequence, *args, **kwargs)

    monkeypatch.setattr(LowerTiers, "fetch", cancel_and_fetch)
    monkeypatch.setattr(Speed, "step_cost", lambda speed, block_bytes: FAST)
    answers: dict[str, Answer] = {}
    async with running_kvstore(cluster, tmp_path / "store") as store:
        worker = await cluster.start_decode(
            "decode-1",
            num_blocks=TOO_FEW_BLOCKS,
            kvstore_endpoint=store.endpoint,
            write_through="all",
        )
        expected = cluster.alone(PROMPTS, SAMPLING)
        for prompt in PROMPTS:
            answer = await cluster.generate("decode-1", prompt, sampling=SAMPLING)
            answers[answer.request.request_id] = answer
        for answer, tokens in zip(answers.values(), expected, strict=True):
            found = (await answer.finished()).token_ids
            assert found == tokens[: len(found)]
            assert len(found) == 60 or answer.request.request_id in cancelled
        assert cancelled
        await cluster.idle(worker)
