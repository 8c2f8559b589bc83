"""What the metrics and spans say of a sequence's end, and of a prompt that is never finished."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from support.span_files import read_spans
from support.worker_cluster import SECONDS, Cluster

from pagoda_decode import server as decode_server
from pagoda_decode.decode_handler import DecodeHandler
from pagoda_engine import Engine, SamplingParams, StepResult
from pagoda_prefill import server as prefill_server
from pagoda_prefill.prefill_handler import PrefillHandler
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
STAGE = "pagoda_stage_seconds_count"


class HeldPrompt:
    """The engine waits after the second step of a prompt until its handler ends a sequence.

    A prefill worker's handler may find out by a push that fails before it hears of a cancellation.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, role: str) -> None:
        self.is_armed = False  # workers compute some prompts as they start
        self.reached = threading.Event()
        ended = threading.Event()
        step, num_steps = Engine.step, 0

        def held(engine: Engine) -> StepResult:
            nonlocal num_steps
            result = step(engine)
            num_steps += self.is_armed and result.stats.num_prefill_tokens > 0
            if num_steps == 2:
                self.reached.set()
                ended.wait(SECONDS)
            return result

        server: Any = decode_server if role == "decode" else prefill_server
        handler: Any = DecodeHandler if role == "decode" else PrefillHandler

        class Ending(handler):
            def end(self, sequence: Any, error: str) -> None:
                super().end(sequence, error)
                ended.set()

            def _forget(self, *arguments: Any, **options: Any) -> None:
                super()._forget(*arguments, **options)
                ended.set()

        monkeypatch.setattr(Engine, "step", held)
        monkeypatch.setattr(server, handler.__name__, Ending)


@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_a_prompt_that_is_cut_short_is_recorded_as_far_as_it_came(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str
) -> None:
    held = HeldPrompt(monkeypatch, role=role)
    workers = {"decode": await cluster.start_decode("decode-1")}
    workers["prefill"] = await cluster.start_prefill("prefill-1")
    held.is_armed = True
    common = cluster.common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("test", common, instance_id="1")
    try:
        prefill_worker_id = "prefill-1" if role == "prefill" else ""
        answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id=prefill_worker_id)
        assert await asyncio.to_thread(held.reached.wait, SECONDS)
        await cluster.cancel("decode-1", answer)
        await answer.finished()
        await cluster.idle(workers[role])
    finally:
        shutdown_telemetry()

    assert workers[role].metric(STAGE, stage="prefill.queue") == 1
    assert workers[role].metric(STAGE, stage="prefill.compute") == 1
    (span,) = (s for s in read_spans(tmp_path / "traces") if s["name"] == "prefill.compute")
    assert span["attributes"]["pagoda.is_cut_short"] is True
    if role == "decode":
        assert answer.last is not None
        assert answer.last.stages.prefill_compute_ms > 0
        assert not answer.last.HasField("cached"), "that is said of prompts that are computed"


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_a_wait_that_is_cut_short_is_recorded(
    cluster: Cluster, prefill_worker_id: str
) -> None:
    decode = await cluster.start_decode("decode-1", max_num_seqs=1)
    running = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await running.first_token()
    waiting = await cluster.generate("decode-1", PROMPT[::-1], prefill_worker_id=prefill_worker_id)

    await cluster.cancel("decode-1", waiting)
    await waiting.finished()

    assert waiting.last is not None
    stages = waiting.last.stages
    queued = (stages.prefill_queue_ms > 0, stages.decode_queue_ms > 0)
    assert queued == (not prefill_worker_id, bool(prefill_worker_id))
    assert stages.prefill_compute_ms == 0
    stage = "decode.queue" if prefill_worker_id else "prefill.queue"
    ended_before = 0 if prefill_worker_id else 1
    assert decode.metric(STAGE, stage=stage) == ended_before + 1
    await cluster.cancel("decode-1", running)
    await running.finished()


async def test_an_output_of_one_token_ends_for_its_own_reason(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    one = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)

    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1", sampling=one)
    await answer.finished()
    await cluster.idle(decode)

    assert decode.metric("pagoda_sequences_ended_total", reason="length") == 1
    assert decode.metric("pagoda_sequences_ended_total", reason="prefill") == 0
    assert prefill.metric("pagoda_decode_tokens_total") == 1
    assert decode.metric("pagoda_decode_tokens_total") == 0
