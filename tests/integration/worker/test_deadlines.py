"""A deadline that passes while another worker has the prompt: the request ends, nothing else."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest
from support.fake_prefill import FakePrefill
from support.worker_cluster import SECONDS, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda_decode import server as decode_server
from pagoda_decode.decode_handler import DecodeHandler
from pagoda_prefill import server as prefill_server
from pagoda_prefill.prefill_handler import PrefillHandler
from pagoda_worker import worker
from pagoda_worker.errors import PushError
from pagoda_worker.kv_transfer.grpc_producer import GrpcProducer, GrpcPush

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))


class Clock:
    """Monotonic seconds that can leap."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of all workers, which do not look for overdue sequences by themselves."""
    clock = Clock()

    def handler_of(handler_class: Any) -> Any:
        def make(worker: Any, *args: Any, **options: Any) -> Any:
            worker.monotonic = clock
            return handler_class(worker, *args, **options)

        return make

    monkeypatch.setattr(worker, "HOUSEKEEPING_SECONDS", 3600.0)
    monkeypatch.setattr(decode_server, "DecodeHandler", handler_of(DecodeHandler))
    monkeypatch.setattr(prefill_server, "PrefillHandler", handler_of(PrefillHandler))
    return clock


@pytest.mark.parametrize("outcome", ["producer gave up", "push broken"])
async def test_a_prompt_is_not_computed_anew_after_its_deadline(
    cluster: Cluster, clock: Clock, outcome: str
) -> None:
    decode = await cluster.start_decode("decode-1", lease_seconds=600)
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    clock.ahead = SECONDS
    if outcome == "push broken":
        with pytest.raises(grpc.aio.AioRpcError):
            await fake.push(request.lease, [])
    else:
        await fake.release(request.lease)

    await answer.finished()
    assert answer.last is not None
    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    assert "deadline" in answer.last.error
    assert decode.metric("pagoda_prefill_tokens_total") == 0
    assert decode.metric("pagoda_local_prefill_fallbacks_total", outcome=outcome) == 0
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="sequence ended") == 1


async def test_a_push_that_the_deadline_ends_is_no_warning(
    cluster: Cluster, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class LatePush(GrpcPush):
        async def send(self, first_block: int, block_ids: Sequence[int], **options: Any) -> None:
            clock.ahead = SECONDS
            raise PushError("lease", "endpoint", "deadline exceeded")

    class LateProducer(GrpcProducer):
        def push(self, target: Any, *, timeout_seconds: float) -> LatePush:
            return LatePush(self, target, timeout_seconds)

    await cluster.start_decode("decode-1", lease_seconds=600)
    await cluster.start_prefill("prefill-1", producer_class=LateProducer)
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    async with asyncio.timeout(SECONDS):
        await answer.finished()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
