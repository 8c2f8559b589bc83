"""The producer's side of KvTransferService: reads, digests and streams blocks.

Reading and digesting happen in threads. Payloads go through the shared-memory arena where the
consumer can open it, else inline. Knows leases only by their ids.
"""

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import grpc
import grpc.aio

from pagoda.rpc.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from pagoda.worker.errors import PushError
from pagoda.worker.kv_transfer.base import (
    MESSAGE_BYTES,
    LeaseTarget,
    PushSummary,
    PushTrailer,
    ReadableBlocks,
)
from pagoda.worker.kv_transfer.digests import ByteArray, digest_blocks
from pagoda.worker.kv_transfer.shared_memory import Arena

logger = logging.getLogger(__name__)

MAX_CHANNELS = 64
GIVE_UP_SECONDS = 2.0

OpenChannel = Callable[[str], grpc.aio.Channel]


class GrpcProducer:
    """Pushes blocks of one pool. One channel per consumer, kept open.

    Args:
        kv_cache: where blocks are read from.
        kv_identity: 16 bytes; the consumer refuses another one.
        open_channel: endpoint -> channel with credentials.
        executor: threads for reading and digesting.
        arena: None = everything inline.
    """

    def __init__(
        self,
        kv_cache: ReadableBlocks,
        *,
        kv_identity: bytes,
        open_channel: OpenChannel,
        executor: Executor,
        arena: Arena | None = None,
    ) -> None:
        self.kv_cache = kv_cache
        self.kv_identity = kv_identity
        self.executor = executor
        self.arena = arena
        self.blocks_per_message = max(1, MESSAGE_BYTES // kv_cache.block_bytes)
        self._open_channel = open_channel
        self._channels: collections.OrderedDict[str, grpc.aio.Channel] = collections.OrderedDict()
        self._inline_epochs: collections.OrderedDict[str, None] = collections.OrderedDict()

    def push(self, target: LeaseTarget, *, timeout_seconds: float) -> "GrpcPush":
        """Start a push; nothing is sent before the first block."""
        return GrpcPush(self, target, timeout_seconds)

    async def give_up(self, target: LeaseTarget, reason: str) -> None:
        """Tell the consumer that nothing will come. Never raises: the lease expires by itself."""
        request = kv_transfer_pb2.ReleaseRequest(
            lease_id=target.lease_id, epoch=target.epoch, reason=reason
        )
        try:
            await self.stub(target.endpoint).Release(request, timeout=GIVE_UP_SECONDS)
        except grpc.aio.AioRpcError as error:
            logger.info("lease %s could not be given up: %s", target.lease_id, error.details())

    async def close(self) -> None:
        """Close all channels and the arena."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        if self.arena is not None:
            self.arena.close()

    def stub(self, endpoint: str) -> "kv_transfer_pb2_grpc.KvTransferServiceAsyncStub":
        """Return a stub for one consumer."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._open_channel(endpoint)
            if len(self._channels) > MAX_CHANNELS:  # closed when its last push lets go of it
                self._channels.popitem(last=False)
        self._channels.move_to_end(endpoint)
        return kv_transfer_pb2_grpc.KvTransferServiceStub(channel)

    def arena_for(self, epoch: str) -> Arena | None:
        """Return the arena unless this consumer could not open it before."""
        return None if epoch in self._inline_epochs else self.arena

    def remember_inline(self, epoch: str) -> None:
        """This consumer cannot open the arena."""
        self._inline_epochs[epoch] = None
        if len(self._inline_epochs) > MAX_CHANNELS:
            self._inline_epochs.popitem(last=False)

    def encode(
        self, arena: Arena | None, ticket: int, first_block: int, block_ids: Sequence[int]
    ) -> kv_transfer_pb2.PushRequest:
        """Read and digest blocks into one message. Runs in a thread."""
        payloads: ByteArray = self.kv_cache.read_blocks(block_ids).numpy()
        blocks = []
        for position, digest in enumerate(digest_blocks(payloads)):
            block = kv_transfer_pb2.Block(
                index=first_block + position, digest=digest, num_bytes=payloads.shape[1]
            )
            offset = None if arena is None else arena.put(ticket, payloads[position])
            if offset is None:
                block.payload = payloads[position].tobytes()
            else:
                block.arena_offset = offset
            blocks.append(block)
        return kv_transfer_pb2.PushRequest(blocks=kv_transfer_pb2.PushBlocks(blocks=blocks))


PushCall = grpc.aio.StreamUnaryCall[kv_transfer_pb2.PushRequest, kv_transfer_pb2.PushResponse]


class GrpcPush:
    """One Push stream. Starts over inline, once, if the consumer cannot open the arena."""

    def __init__(self, producer: GrpcProducer, target: LeaseTarget, timeout_seconds: float) -> None:
        self._producer = producer
        self._target = target
        self._ends_at = time.monotonic() + timeout_seconds
        self._arena = producer.arena_for(target.epoch)
        self._ticket = 0 if self._arena is None else self._arena.new_ticket()
        self._call: PushCall | None = None
        self._sent: list[tuple[int, tuple[int, ...]]] = []
        self._encoding: asyncio.Future[kv_transfer_pb2.PushRequest] | None = None
        self._seconds = 0.0

    async def send(self, first_block: int, block_ids: Sequence[int]) -> None:
        """See `KvPush.send`."""
        started = time.perf_counter()
        step = self._producer.blocks_per_message
        for start in range(0, len(block_ids), step):
            part = (first_block + start, tuple(block_ids[start : start + step]))
            self._sent.append(part)
            try:
                await self._send_part(*part)
            except PushError:
                if not await self._must_start_over():
                    raise
                await self._start_over()
        self._seconds += time.perf_counter() - started

    async def finish(self, trailer: PushTrailer) -> PushSummary:
        """See `KvPush.finish`."""
        started = time.perf_counter()
        message = kv_transfer_pb2.PushRequest(
            trailer=kv_transfer_pb2.PushTrailer(
                num_computed_tokens=trailer.num_computed_tokens,
                first_token_id=trailer.first_token_id,
                is_finished=trailer.is_finished,
            )
        )
        response = await self._finish(message)
        if response.needs_inline:
            self._producer.remember_inline(self._target.epoch)
            await self._start_over()
            response = await self._finish(message)
        num_blocks = sum(len(block_ids) for _, block_ids in self._sent)
        return PushSummary(
            num_blocks=num_blocks,
            num_bytes=num_blocks * self._producer.kv_cache.block_bytes,
            bad_blocks=tuple(response.bad_blocks),
            seconds=self._seconds + time.perf_counter() - started,
        )

    async def close(self) -> None:
        """See `KvPush.close`."""
        if self._call is not None:
            self._call.cancel()
        if self._encoding is not None:  # a thread cannot be cancelled: wait, it reads our blocks
            await asyncio.wait([self._encoding])
        if self._arena is not None:
            self._arena.release(self._ticket)

    async def _send_part(self, first_block: int, block_ids: tuple[int, ...]) -> None:
        call = self._call or await self._open()
        self._encoding = asyncio.get_running_loop().run_in_executor(
            self._producer.executor,
            self._producer.encode,
            self._arena,
            self._ticket,
            first_block,
            block_ids,
        )
        message = await asyncio.shield(self._encoding)
        await self._write(call, message)

    async def _open(self) -> PushCall:
        timeout = max(self._ends_at - time.monotonic(), 0.001)
        self._call = call = self._producer.stub(self._target.endpoint).Push(timeout=timeout)
        header = kv_transfer_pb2.PushHeader(
            lease_id=self._target.lease_id,
            epoch=self._target.epoch,
            kv_identity=self._producer.kv_identity,
            shared_memory_name="" if self._arena is None else self._arena.name,
        )
        await self._write(call, kv_transfer_pb2.PushRequest(header=header))
        return call

    async def _write(self, call: PushCall, message: kv_transfer_pb2.PushRequest) -> None:
        try:
            await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._push_error(call, error) from error

    async def _finish(self, trailer: kv_transfer_pb2.PushRequest) -> kv_transfer_pb2.PushResponse:
        call = self._call or await self._open()
        with contextlib.suppress(PushError):  # the response, or its status, says why
            await self._write(call, trailer)
            await call.done_writing()
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise await self._push_error(call, error) from error

    async def _must_start_over(self) -> bool:
        """Tell whether the call ended because the consumer cannot open the arena."""
        if self._arena is None or self._call is None or not self._call.done():
            return False
        try:
            response = await self._call
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            return False
        if response.needs_inline:
            self._producer.remember_inline(self._target.epoch)
        return response.needs_inline

    async def _start_over(self) -> None:
        if self._arena is not None:
            self._arena.release(self._ticket)
        self._arena = None
        self._call = None
        for part in self._sent:
            await self._send_part(*part)

    async def _push_error(self, call: PushCall, error: Exception) -> PushError:
        reason = str(error)
        if call.done():
            reason = f"{(await call.code()).name}: {await call.details()}"
        return PushError(self._target.lease_id, self._target.endpoint, reason)
