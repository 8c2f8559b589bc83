"""What a decode worker does when its producer does not do what it promised."""

import asyncio

import grpc
import pytest
import torch
from support.fake_prefill import FakePrefill, block_message, trailer_message
from support.worker_cluster import Cluster

from pagoda.rpc.v1 import generate_pb2, kv_transfer_pb2, status_pb2
from pagoda_decode import remote_prefill
from pagoda_engine.cache import peer_pool
from pagoda_engine.cache.shared_memory import SharedMemoryError
from pagoda_worker.kv_transfer.grpc_producer import GrpcProducer

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 101))


def corrupting_producer(block: int) -> type[GrpcProducer]:
    """Flips a bit of one block after its digest was taken, in the pool or in the message."""

    class CorruptingProducer(GrpcProducer):
        def encode(self, part, is_inline):
            message = super().encode(part, is_inline)
            for sent in message.blocks.blocks:
                if sent.index == block and sent.payload:
                    sent.payload = bytes([sent.payload[0] ^ 1]) + sent.payload[1:]
                elif sent.index == block:
                    in_pool = self.kv_cache.part(part.layers)[:, :, sent.pool_block_id]
                    in_pool.view(torch.uint8)[1, -1, -1, -1, -1] ^= 1
            return message

    return CorruptingProducer


async def assert_same_tokens(cluster: Cluster, answer) -> None:
    assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]


@pytest.mark.parametrize("num_layer_groups", [1, 2])
@pytest.mark.parametrize("kv_transfer", ["host", "grpc"])
async def test_flipped_bit_is_found_and_recomputed(
    cluster: Cluster, kv_transfer: str, num_layer_groups: int
) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill(
        "prefill-1",
        producer_class=corrupting_producer(3),
        kv_transfer=kv_transfer,
        num_layer_groups=num_layer_groups,
    )

    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    await assert_same_tokens(cluster, answer)
    await cluster.idle(decode)
    await cluster.idle(prefill)
    assert decode.metric("pagoda_kv_bad_digests_total", source="transfer") == 1
    assert prefill.metric("pagoda_kv_bad_digests_total", source="transfer") == 1
    assert decode.metric("pagoda_prefill_tokens_total") == len(PROMPT) - 3 * 16


async def test_consumer_that_cannot_open_the_pool_gets_payloads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    num_refusals = 0

    def open_nowhere(handle: bytes, *, num_bytes: int) -> None:
        nonlocal num_refusals
        num_refusals += 1
        raise SharedMemoryError("another container")

    monkeypatch.setattr(peer_pool, "open_shared_memory", open_nowhere)
    for _ in range(2):
        answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
        await assert_same_tokens(cluster, answer)

    assert num_refusals == 1  # the producer remembers
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == 2
    assert decode.metric("pagoda_prefill_tokens_total") == 0


UNSENT = "Internal error from Core"  # so grpc.aio hides a refusal that overtook a message


async def push_refused(
    fake: FakePrefill,
    lease: generate_pb2.Lease,
    messages: list[kv_transfer_pb2.PushRequest],
    **fields: object,
) -> grpc.StatusCode:
    """Push what must be refused, and return what it is refused with."""
    for _ in range(10):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fake.push(lease, messages, **fields)
        if refused.value.details() != UNSENT:
            break
    return refused.value.code()


async def test_silent_producer_loses_its_lease_and_a_late_push_is_refused(
    cluster: Cluster,
) -> None:
    decode = await cluster.start_decode("decode-1", lease_seconds=0.3)
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    await assert_same_tokens(cluster, answer)
    await cluster.idle(decode)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="lease expired") == 1
    assert (await fake.next_cancel()).request_id == request.generate.request_id
    late = await push_refused(fake, request.lease, [block_message(0, bytes(fake.block_bytes))])
    assert late == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("state", [status_pb2.WORKER_STATE_GONE, None])
async def test_lost_producer_is_noticed_long_before_the_lease_expires(
    cluster: Cluster, state: "status_pb2.WorkerState.ValueType | None"
) -> None:
    decode = await cluster.start_decode("decode-1", lease_seconds=600)
    fake = await FakePrefill(cluster, "prefill-1").start()
    await fake.announce(status_pb2.WORKER_STATE_READY)
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    await fake.next_request()

    if state is not None:  # else its heartbeats just stop
        await fake.announce(state)

    await assert_same_tokens(cluster, answer)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="producer lost") == 1


async def test_producer_lost_before_it_answered_is_not_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_prefill, "REQUEST_SECONDS", 600)
    decode = await cluster.start_decode("decode-1", lease_seconds=600)
    fake = await FakePrefill(cluster, "prefill-1").start()
    fake.may_answer.clear()
    await fake.announce(status_pb2.WORKER_STATE_READY)
    answer = await cluster.generate(
        "decode-1", PROMPT, prefill_worker_id="prefill-1", deadline_seconds=600
    )
    await fake.next_request()

    await fake.announce(status_pb2.WORKER_STATE_GONE)

    await assert_same_tokens(cluster, answer)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="producer lost") == 1
    fake.may_answer.set()


async def test_consumer_that_cannot_be_reached_is_told_by_the_bus(cluster: Cluster) -> None:
    unreachable = "127.255.255.254"  # it serves another address than it names
    decode = await cluster.start_decode("decode-1", lease_seconds=600, advertise_host=unreachable)
    prefill = await cluster.start_prefill("prefill-1")

    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    await assert_same_tokens(cluster, answer)
    await cluster.idle(prefill)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="producer gave up") == 1


@pytest.mark.parametrize(
    "status", [generate_pb2.ADMIT_STATUS_OVERLOADED, generate_pb2.ADMIT_STATUS_DRAINING]
)
async def test_refused_prefill_happens_locally(
    cluster: Cluster, status: "generate_pb2.AdmitStatus.ValueType"
) -> None:
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    fake.status = status

    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")

    await assert_same_tokens(cluster, answer)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="producer refused") == 1
    assert answer.frames[0].cached == generate_pb2.CachedTokens()
    assert answer.frames[0].stages.prefill_compute_ms > 0


async def test_absent_prefill_worker_is_no_failure(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1")

    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-nowhere")

    await assert_same_tokens(cluster, answer)


async def test_producer_that_gives_up_is_replaced(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1", lease_seconds=600)
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    await fake.release(request.lease)
    await fake.release(request.lease)

    await assert_same_tokens(cluster, answer)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="producer gave up") == 1


async def push_and_expect(
    cluster: Cluster,
    code: grpc.StatusCode,
    messages: list[kv_transfer_pb2.PushRequest] | None = None,
    **fields: object,
) -> None:
    await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()
    messages = [block_message(0, bytes(fake.block_bytes))] if messages is None else messages

    assert await push_refused(fake, request.lease, messages, **fields) == code
    if code is grpc.StatusCode.FAILED_PRECONDITION:  # the lease itself was not touched
        await fake.release(request.lease)
    await assert_same_tokens(cluster, answer)


async def test_push_of_another_epoch_is_refused(cluster: Cluster) -> None:
    await push_and_expect(cluster, grpc.StatusCode.FAILED_PRECONDITION, epoch="older")


async def test_push_of_another_model_is_refused(cluster: Cluster) -> None:
    await push_and_expect(cluster, grpc.StatusCode.FAILED_PRECONDITION, kv_identity=bytes(16))


async def test_block_outside_the_lease_is_refused(cluster: Cluster) -> None:
    messages = [block_message(7, bytes(16), num_bytes=16)]
    await push_and_expect(cluster, grpc.StatusCode.INVALID_ARGUMENT, messages)


async def test_block_of_the_wrong_size_is_refused(cluster: Cluster) -> None:
    messages = [block_message(0, bytes(16))]
    await push_and_expect(cluster, grpc.StatusCode.INVALID_ARGUMENT, messages)


async def test_stream_without_trailer_is_refused(cluster: Cluster) -> None:
    await push_and_expect(cluster, grpc.StatusCode.INVALID_ARGUMENT, [])


async def test_trailer_that_claims_too_much_is_not_believed(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    response = await fake.push(request.lease, [trailer_message(len(PROMPT), 5)])

    assert response.num_blocks == 0
    await assert_same_tokens(cluster, answer)
    await cluster.idle(decode)


async def test_second_push_of_a_lease_is_refused_while_the_first_runs(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    results = await asyncio.gather(
        *(fake.push(request.lease, [trailer_message(0, 5)]) for _ in range(2)),
        return_exceptions=True,
    )

    errors = [r for r in results if isinstance(r, grpc.aio.AioRpcError)]
    assert [e.code() for e in errors] == [grpc.StatusCode.FAILED_PRECONDITION]
    await assert_same_tokens(cluster, answer)
