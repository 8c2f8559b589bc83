"""The test as a prefill worker: takes requests and does with leases what a test asks for."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, kv_transfer_pb2, kv_transfer_pb2_grpc, status_pb2
from pagoda_runtime.messaging import subjects
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_worker.kv_transfer.digests import digest_blocks
from support.worker_cluster import SECONDS, Cluster


class FakePrefill:
    """Accepts every request and then does nothing by itself."""

    def __init__(self, cluster: Cluster, worker_id: str) -> None:
        self.cluster = cluster
        self.worker_id = worker_id
        self.requests: asyncio.Queue[generate_pb2.PrefillRequest] = asyncio.Queue()
        self.cancels: asyncio.Queue[generate_pb2.CancelRequest] = asyncio.Queue()
        self.status = generate_pb2.ADMIT_STATUS_ACCEPTED
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def start(self) -> "FakePrefill":
        bus = self.cluster.bus
        await bus.serve(
            subjects.prefill(self.worker_id), generate_pb2.PrefillRequest, self._on_prefill
        )
        await bus.subscribe(
            subjects.cancel(self.worker_id), generate_pb2.CancelRequest, self._on_cancel
        )
        return self

    async def next_request(self) -> generate_pb2.PrefillRequest:
        async with asyncio.timeout(SECONDS):
            return await self.requests.get()

    async def next_cancel(self) -> generate_pb2.CancelRequest:
        async with asyncio.timeout(SECONDS):
            return await self.cancels.get()

    async def announce(self, state: "status_pb2.WorkerState.ValueType") -> None:
        status = status_pb2.WorkerStatus(
            worker_id=self.worker_id,
            epoch="fake",
            role=status_pb2.ROLE_PREFILL,
            state=state,
            sent_unix_seconds=time.time(),
        )
        await self.cluster.bus.publish(subjects.status("prefill", self.worker_id), status)

    async def push(
        self,
        lease: generate_pb2.Lease,
        messages: Sequence[kv_transfer_pb2.PushRequest],
        *,
        epoch: str | None = None,
        kv_identity: bytes | None = None,
    ) -> kv_transfer_pb2.PushResponse:
        header = kv_transfer_pb2.PushHeader(
            lease_id=lease.lease_id,
            epoch=lease.epoch if epoch is None else epoch,
            kv_identity=self.kv_identity if kv_identity is None else kv_identity,
        )

        async def requests() -> AsyncIterator[kv_transfer_pb2.PushRequest]:
            yield kv_transfer_pb2.PushRequest(header=header)
            for message in messages:
                yield message

        async with self._channel(lease.endpoint) as channel:
            stub = kv_transfer_pb2_grpc.KvTransferServiceStub(channel)
            return await stub.Push(requests(), timeout=SECONDS)

    async def release(self, lease: generate_pb2.Lease) -> None:
        message = generate_pb2.LeaseRelease(
            lease_id=lease.lease_id, epoch=lease.epoch, reason="test"
        )
        await self.cluster.bus.publish(subjects.release(lease.worker_id), message)

    @property
    def kv_identity(self) -> bytes:
        return next(iter(self.cluster.statuses.values())).model.kv_identity

    @property
    def block_bytes(self) -> int:
        return next(iter(self.cluster.statuses.values())).model.block_bytes

    def _channel(self, endpoint: str):
        token = self.cluster.common.cluster_token.get_secret_value()
        return grpc_channel(endpoint, token=token)

    async def _on_prefill(
        self, message: generate_pb2.PrefillRequest, context: Context
    ) -> generate_pb2.PrefillResponse:
        self.requests.put_nowait(message)
        await self.may_answer.wait()
        return generate_pb2.PrefillResponse(status=self.status, epoch="fake")

    async def _on_cancel(self, message: generate_pb2.CancelRequest, context: Context) -> None:
        self.cancels.put_nowait(message)


def block_message(index: int, payload: bytes, **fields: object) -> kv_transfer_pb2.PushRequest:
    rows = np.frombuffer(payload, dtype=np.uint8).reshape(1, -1)
    values = {
        "index": index,
        "digest": digest_blocks(rows)[0],
        "payload": payload,
        "num_bytes": len(payload),
    } | fields
    return kv_transfer_pb2.PushRequest(
        blocks=kv_transfer_pb2.PushBlocks(blocks=[kv_transfer_pb2.Block(**values)])
    )


def trailer_message(num_computed_tokens: int, token_id: int) -> kv_transfer_pb2.PushRequest:
    return kv_transfer_pb2.PushRequest(
        trailer=kv_transfer_pb2.PushTrailer(
            num_computed_tokens=num_computed_tokens, first_token_id=token_id
        )
    )
