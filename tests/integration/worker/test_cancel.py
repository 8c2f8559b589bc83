"""Whatever stage a cancel meets, both sides get all their blocks back."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.fake_prefill import FakePrefill
from support.worker_cluster import Answer, Cluster, RunningWorker

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_engine import SamplingParams
from pagoda_runtime.messaging import subjects
from pagoda_runtime.status import slow_status
from pagoda_worker.kv_transfer.grpc_producer import GrpcProducer, GrpcPush

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


class Gate:
    """Holds a push after its first message."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()


def gated_producer(gate: Gate) -> type[GrpcProducer]:
    class GatedPush(GrpcPush):
        async def send(self, first_block: int, block_ids: Sequence[int], **options: Any) -> None:
            await super().send(first_block, block_ids, **options)
            gate.reached.set()
            await gate.opened.wait()

    class GatedProducer(GrpcProducer):
        def push(self, target, *, timeout_seconds):
            return GatedPush(self, target, timeout_seconds)

    return GatedProducer


async def assert_aborted(cluster: Cluster, answer: Answer, *workers: RunningWorker) -> None:
    await answer.finished()
    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    assert "client_disconnect" in answer.last.error
    for worker in workers:
        await cluster.idle(worker)


async def test_cancel_while_waiting_for_admission(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1", max_num_seqs=1)
    running = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await running.first_token()
    waiting = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    await cluster.cancel("decode-1", waiting)
    await waiting.finished()

    assert waiting.tokens == {}
    assert waiting.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    await cluster.cancel("decode-1", running)
    await assert_aborted(cluster, running, decode)


async def test_cancel_while_reserved_tells_the_prefill_worker(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    await cluster.cancel("decode-1", answer)

    await assert_aborted(cluster, answer, decode)
    assert (await fake.next_cancel()).request_id == request.generate.request_id


async def test_cancel_during_the_push(cluster: Cluster) -> None:
    gate = Gate()
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1", producer_class=gated_producer(gate))
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    await gate.reached.wait()

    await cluster.cancel("decode-1", answer)

    await assert_aborted(cluster, answer, decode, prefill)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="sequence ended") == 1


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_cancel_while_generating(cluster: Cluster, prefill_worker_id: str) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    answer = await cluster.generate(
        "decode-1", PROMPT, sampling=LONG, prefill_worker_id=prefill_worker_id
    )
    await answer.wait_for(lambda a: len(a.tokens) >= 3)

    await cluster.cancel("decode-1", answer)

    await assert_aborted(cluster, answer, decode, prefill)
    assert len(answer.tokens) < LONG.max_tokens


async def test_cancel_of_the_unknown_changes_nothing(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1")
    answer = await cluster.generate("decode-1", PROMPT)
    other = Answer(cluster.request(PROMPT))

    await cluster.cancel("decode-1", other)

    assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]


@pytest.mark.parametrize("cancelled", [None, 0, 3])
async def test_a_cancel_that_comes_first_wins(cluster: Cluster, cancelled: int | None) -> None:
    decode = await cluster.start_decode("decode-1")
    request = cluster.request(PROMPT, sampling=LONG)
    message = generate_pb2.CancelRequest(
        request_id=request.request_id, sequence_indices=[0], attempt=cancelled
    )
    await cluster.bus.publish(subjects.cancel("decode-1"), message)

    response = await cluster.ask("decode-1", request)

    assert response.status == generate_pb2.ADMIT_STATUS_CANCELLED
    await cluster.idle(decode)


async def test_a_late_cancel_leaves_the_next_attempt_alone(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1")
    request = cluster.request(PROMPT, attempt=1)
    answer = cluster.answers[request.request_id, 1] = Answer(request)
    superseded = generate_pb2.CancelRequest(request_id=request.request_id, attempt=0)
    await cluster.bus.publish(subjects.cancel("decode-1"), superseded)
    await cluster.ask("decode-1", request)
    await cluster.bus.publish(subjects.cancel("decode-1"), superseded)

    assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]


async def test_sequences_of_a_gateway_that_is_gone_end(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    beat = slow_status(status_pb2.ROLE_GATEWAY, cluster.gateway_id, "e1")
    subject = subjects.status("gateway", cluster.gateway_id)
    await cluster.bus.publish(subject, beat)
    answer = await cluster.generate(
        "decode-1", PROMPT, sampling=LONG, prefill_worker_id="prefill-1"
    )
    await answer.wait_for(lambda a: len(a.tokens) >= 3)

    beat.state = status_pb2.WORKER_STATE_GONE
    await cluster.bus.publish(subject, beat)

    await answer.finished()
    assert "is gone" in answer.last.error
    await cluster.idle(decode)
    await cluster.idle(prefill)


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_a_probe_says_how_far_a_sequence_is(cluster: Cluster, prefill_worker_id: str) -> None:
    await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    answer = await cluster.generate(
        "decode-1", PROMPT, sampling=LONG, prefill_worker_id=prefill_worker_id
    )
    await answer.wait_for(lambda a: len(a.tokens) >= 5)
    name = {"request_id": answer.request.request_id, "sequence_index": 0}
    probe = generate_pb2.ProbeRequest(
        sequences=[
            generate_pb2.ProbedSequence(**name, attempt=0),
            generate_pb2.ProbedSequence(**name, attempt=1),
        ]
    )

    response = await cluster.bus.request(
        subjects.probe("decode-1"), probe, generate_pb2.ProbeResponse, timeout_seconds=60
    )

    known, unknown = response.progress
    assert known.is_known
    assert not unknown.is_known
    await answer.wait_for(lambda a: len(a.tokens) >= known.next_index)
    assert known.next_index >= 5
    await cluster.cancel("decode-1", answer)


async def test_deadline_ends_a_sequence(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    await FakePrefill(cluster, "prefill-1").start()

    answer = await cluster.generate(
        "decode-1", PROMPT, prefill_worker_id="prefill-1", deadline_seconds=2.0
    )

    await answer.finished()
    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    assert "deadline" in answer.last.error
    await cluster.idle(decode)


async def test_draining_worker_refuses_and_hands_over_what_it_cannot_finish(
    cluster: Cluster,
) -> None:
    decode = await cluster.start_decode("decode-1", drain_seconds=2.0)
    await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    decode.stop.set()
    await cluster.status(
        "decode-1", lambda status: status.state == status_pb2.WORKER_STATE_DRAINING
    )
    refused = await cluster.ask("decode-1", cluster.request(PROMPT))

    assert refused.status == generate_pb2.ADMIT_STATUS_DRAINING
    await answer.finished()
    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    assert "another one can go on" in answer.last.error
    await decode.task
