"""A decode worker searches: its outputs come in one frame, and a cancel frees every beam."""

import asyncio
import dataclasses
import itertools
from typing import Any

import pytest
from support.engine_driver import EngineDriver
from support.worker_cluster import BLOCK_SIZE, SECONDS, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda_decode import server
from pagoda_decode.decode_handler import DecodeHandler
from pagoda_decode.decode_sequence import DecodeSequence
from pagoda_engine import BeamSearchParams, EngineConfig, SamplingParams
from pagoda_runtime.telemetry.steady_clock import SteadyClock
from pagoda_worker.worker import Worker

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))
SEARCH = SamplingParams(
    max_tokens=24, temperature=0.0, ignore_eos=True, num_logprobs=1, beam_search=BeamSearchParams(3)
)


def found_alone(cluster: Cluster) -> list[tuple[int, ...]]:
    driver = EngineDriver(cluster.model, EngineConfig(block_size=BLOCK_SIZE, num_blocks=256))
    driver.add("a", PROMPT, sampling=SEARCH)
    return [hypothesis.token_ids for hypothesis in driver.run()["a"].hypotheses]


async def test_all_outputs_come_in_one_frame(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, sampling=SEARCH)
    beside = await cluster.generate("decode-1", PROMPT[::-1])
    await answer.finished()
    await beside.finished()

    (frame,) = answer.frames
    assert (frame.first_index, list(frame.token_ids)) == (0, [])
    assert [tuple(h.token_ids) for h in frame.hypotheses] == found_alone(cluster)
    for hypothesis in frame.hypotheses:
        assert hypothesis.finish_reason == generate_pb2.FINISH_REASON_LENGTH
        chosen = [position.chosen for position in hypothesis.logprobs]
        assert [token.token_id for token in chosen] == list(hypothesis.token_ids)
        mean = sum(token.logprob for token in chosen) / len(chosen)
        assert hypothesis.score == pytest.approx(mean, rel=1e-4)
    assert beside.token_ids == cluster.alone([PROMPT[::-1]])[0]
    assert decode.metric("pagoda_prefill_tokens_total") == 2 * len(PROMPT)  # once, for all beams
    await cluster.idle(decode)


async def test_a_cancel_frees_the_blocks_of_every_beam(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    long = dataclasses.replace(SEARCH, max_tokens=300)
    answer = await cluster.generate("decode-1", PROMPT, sampling=long)
    async with asyncio.timeout(SECONDS):
        # Polled, since a heartbeat may come after the search has ended.
        while decode.metric("pagoda_num_requests_running") != 3:  # noqa: ASYNC110
            await asyncio.sleep(0)

    await cluster.cancel("decode-1", answer)

    await answer.finished()
    assert answer.last is not None
    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    assert not answer.last.hypotheses
    assert answer.last.stages.prefill_compute_ms > 0
    await cluster.idle(decode)


async def test_a_search_generates_from_the_end_of_its_prompt_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count(1)  # a second goes by whenever somebody looks, in each step at least

    def handler(worker: Worker[DecodeSequence], **options: Any) -> DecodeHandler:
        worker.clock = SteadyClock(lambda: 1e6, lambda: float(next(ticks)))
        return DecodeHandler(worker, **options)

    monkeypatch.setattr(server, "DecodeHandler", handler)
    await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT, sampling=SEARCH)
    await answer.finished()

    (frame,) = answer.frames
    assert frame.stages.decode_generate_ms >= 1000 * (SEARCH.max_tokens - 1)
    assert 0 < frame.stages.prefill_compute_ms < frame.stages.decode_generate_ms


async def test_a_search_that_could_never_end_is_refused(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1", num_blocks=20)
    request = cluster.request(PROMPT, sampling=dataclasses.replace(SEARCH, max_tokens=120))
    response = await cluster.ask("decode-1", request)
    assert response.status == generate_pb2.ADMIT_STATUS_INVALID
    for part in ("3 beams of 220 tokens", "30", "at most 20", "max_tokens"):
        assert part in response.message
