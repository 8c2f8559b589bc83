"""Processes that die, engines that fail."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support.worker_cluster import SECONDS, SMALL, Cluster

from pagoda.engine import Engine
from pagoda.rpc.v1 import generate_pb2
from pagoda.worker.errors import EngineFailedError
from pagoda.worker.kv_transfer.shared_memory import FOLDER, remove_stale_arenas

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))


def environment(cluster: Cluster) -> dict[str, str]:
    common = cluster.common
    values = {f"PAGODA_PREFILL_{name}".upper(): str(value) for name, value in SMALL.items()}
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("PAGODA_")},
        **values,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PAGODA_PREFILL_WORKER_ID": "prefill-dying",
        "PAGODA_NATS_URL": common.nats_url,
        "PAGODA_NATS_TOKEN": common.nats_token.get_secret_value(),
        "PAGODA_CLUSTER_TOKEN": common.cluster_token.get_secret_value(),
        "PAGODA_MODEL": common.model,
        "PAGODA_DTYPE": common.dtype,
    }


async def test_prefill_worker_killed_in_its_push(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1", lease_seconds=600)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("dying_prefill.py")),
        env=environment(cluster),
    )
    try:
        await cluster.status("prefill-dying", lambda status: True)

        answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-dying")

        assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == -9
    finally:
        if process.returncode is None:
            process.kill()
    await cluster.idle(decode)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="push broken") == 1
    assert remove_stale_arenas(FOLDER) == 1  # what the dead process left


async def test_sigterm_drains_and_exits_cleanly(cluster: Cluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagoda.prefill", env=environment(cluster)
    )
    try:
        await cluster.status("prefill-dying", lambda status: True)
        process.terminate()
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


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
