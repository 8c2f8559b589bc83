"""Processes that die, engines that fail."""

import asyncio
from pathlib import Path

import pytest
from support.prefill_process import WORKER_ID, prefill_process
from support.worker_cluster import SECONDS, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import Engine
from pagoda_worker.errors import EngineFailedError

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))


async def test_prefill_worker_killed_in_its_push(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1", lease_seconds=600)
    script = str(Path(__file__).with_name("dying_prefill.py"))
    async with prefill_process(cluster, script) as process:
        for prompt in (PROMPT[::-1], PROMPT):
            answer = await cluster.generate("decode-1", prompt, prefill_worker_id=WORKER_ID)
            assert (await answer.finished()).token_ids == cluster.alone([prompt])[0]
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == -9
    await cluster.idle(decode)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == 1
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="push broken") == 1


@pytest.mark.parametrize("device", ["synchronous"], indirect=True)  # in a process of its own
async def test_sigterm_drains_and_exits_cleanly(cluster: Cluster) -> None:
    async with prefill_process(cluster) as process:
        process.terminate()
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 0


async def test_failed_step_fails_its_sequences_and_ends_the_service(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = await cluster.start_decode("decode-1")
    first = await cluster.generate("decode-1", PROMPT)
    await first.finished()

    def step(self: Engine) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Engine, "step", step)
    answer = await cluster.generate("decode-1", PROMPT)
    await answer.finished()

    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_ERROR
    assert "the device is gone" in answer.last.error
    with pytest.raises(BaseExceptionGroup) as failed:
        await decode.task
    assert failed.group_contains(EngineFailedError)


async def test_failed_prefill_engine_costs_only_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    sound_step = Engine.step

    def step(self: Engine) -> object:
        if any(s.request.prefill_only for s in self._scheduler.waiting):
            raise RuntimeError("the device is gone")
        return sound_step(self)

    monkeypatch.setattr(Engine, "step", step)
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]
    with pytest.raises(BaseExceptionGroup):
        await prefill.task
