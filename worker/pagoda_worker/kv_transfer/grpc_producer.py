"""The producer's side of KvTransferService: digests blocks and says where they are.

A consumer that can open our pool reads them from there; to others they travel inline. Digesting
and reading happen in threads. Knows leases only by their ids.
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import grpc
import grpc.aio

from pagoda.rpc.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from pagoda_engine import KvCache
from pagoda_engine.cache import PoolHandle
from pagoda_runtime.identity import host_id
from pagoda_worker.errors import PushError
from pagoda_worker.kv_transfer.base import LeaseTarget, PushSummary, PushTrailer
from pagoda_worker.kv_transfer.block_parts import BlockPart, encode_part, split_part
from pagoda_worker.kv_transfer.pool_codec import DigestKind, is_pool_open, pool_message

MAX_CHANNELS = 64

OpenChannel = Callable[[str], grpc.aio.Channel]


class ExportedPool(Protocol):
    """A pool that peers can read."""

    @property
    def handle(self) -> PoolHandle:
        """For peers."""
        ...

    def close(self) -> None:
        """Let nobody open it any more."""
        ...


class GrpcProducer:
    """Pushes blocks of one pool. One channel per consumer, kept open.

    Per consumer and not per endpoint: the channel to a process that died waits between its tries
    to connect, and fails at once what is sent meanwhile. Its successor may have the same port.

    Args:
        kv_cache: where the blocks are.
        kv_identity: 16 bytes; the consumer refuses another one.
        open_channel: endpoint -> channel with credentials.
        executor: threads for reading and digesting.
        pool: lets consumers of this host read from `kv_cache`; None: everything inline. Closed with
            the producer.
    """

    def __init__(
        self,
        kv_cache: KvCache,
        *,
        kv_identity: bytes,
        open_channel: OpenChannel,
        executor: Executor,
        pool: ExportedPool | None = None,
    ) -> None:
        self.kv_cache = kv_cache
        self.kv_identity = kv_identity
        self.executor = executor
        self.pool = pool
        self.digest = DigestKind.XXH3
        if kv_cache.device.type == "cuda" and kv_cache.part_places is None:
            self.digest = DigestKind.MULTILINEAR
        self._open_channel = open_channel
        self._channels: collections.OrderedDict[str, grpc.aio.Channel] = collections.OrderedDict()
        self._inline_epochs: collections.OrderedDict[str, None] = collections.OrderedDict()

    def hear_of(self, epoch: str, host: str) -> None:
        """See `KvProducer.hear_of`."""
        is_elsewhere = host not in ("", host_id())
        if is_elsewhere and self.pool is not None and self.pool.handle.host:
            self.remember_inline(epoch)

    def push(self, target: LeaseTarget, *, timeout_seconds: float) -> "GrpcPush":
        """Start a push; nothing is sent before the first block."""
        return GrpcPush(self, target, timeout_seconds)

    def lose(self, epoch: str) -> None:
        """See `KvProducer.lose`. The channel is closed when its last push lets go of it."""
        self._channels.pop(epoch, None)
        self._inline_epochs.pop(epoch, None)

    async def close(self) -> None:
        """Close all channels and the pool."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        if self.pool is not None:
            self.pool.close()

    def stub(self, target: LeaseTarget) -> "kv_transfer_pb2_grpc.KvTransferServiceAsyncStub":
        """Return a stub for one consumer."""
        channel = self._channels.get(target.epoch)
        if channel is None:
            channel = self._channels[target.epoch] = self._open_channel(target.endpoint)
            if len(self._channels) > MAX_CHANNELS:  # closed when its last push lets go of it
                self._channels.popitem(last=False)
        self._channels.move_to_end(target.epoch)
        return kv_transfer_pb2_grpc.KvTransferServiceStub(channel)

    def pool_for(self, epoch: str) -> PoolHandle | None:
        """Return our pool's handle unless it is known that this consumer cannot open it."""
        return None if self.pool is None or epoch in self._inline_epochs else self.pool.handle

    def remember_inline(self, epoch: str) -> None:
        """This consumer cannot open our pool."""
        self._inline_epochs[epoch] = None
        if len(self._inline_epochs) > MAX_CHANNELS:
            self._inline_epochs.popitem(last=False)

    def encode(self, part: BlockPart, is_inline: bool) -> kv_transfer_pb2.PushRequest:
        """Digest blocks, and read them if they travel inline. Runs in a thread."""
        return encode_part(self.kv_cache, part, self.digest, is_inline=is_inline)


PushCall = grpc.aio.StreamUnaryCall[kv_transfer_pb2.PushRequest, kv_transfer_pb2.PushResponse]


class GrpcPush:
    """One Push stream, inline if the consumer says at its begin that it cannot open our pool."""

    def __init__(self, producer: GrpcProducer, target: LeaseTarget, timeout_seconds: float) -> None:
        self._producer = producer
        self._target = target
        self._ends_at = time.monotonic() + timeout_seconds
        self._pool = producer.pool_for(target.epoch)
        self._call: PushCall | None = None
        self._num_bytes = 0
        self._encoding: asyncio.Future[kv_transfer_pb2.PushRequest] | None = None
        self._seconds = 0.0

    async def send(
        self,
        first_block: int,
        block_ids: Sequence[int],
        *,
        layers: range | None = None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        """See `KvPush.send`."""
        if wait is not None:  # not by the executor: its threads are for what is written already
            await asyncio.to_thread(wait)
        started = time.perf_counter()
        await self._send_part(BlockPart(first_block, tuple(block_ids), layers))
        self._num_bytes += len(block_ids) * self._producer.kv_cache.part_bytes(layers)
        self._seconds += time.perf_counter() - started

    async def finish(self, trailer: PushTrailer) -> PushSummary:
        """See `KvPush.finish`."""
        started = time.perf_counter()
        response = await self._finish(
            kv_transfer_pb2.PushTrailer(
                num_computed_tokens=trailer.num_computed_tokens,
                first_token_id=trailer.first_token_id,
                is_finished=trailer.is_finished,
                finish_reason=trailer.finish_reason,
            )
        )
        return PushSummary(
            num_blocks=response.num_blocks + len(response.bad_blocks),
            num_bytes=self._num_bytes,
            bad_blocks=tuple(response.bad_blocks),
            seconds=self._seconds + time.perf_counter() - started,
        )

    async def close(self) -> None:
        """See `KvPush.close`."""
        if self._call is not None:
            self._call.cancel()
        if self._encoding is not None:  # a thread cannot be cancelled: wait, it reads our blocks
            await asyncio.wait([self._encoding])

    async def _send_part(self, part: BlockPart) -> None:
        call = self._call or await self._open()
        producer, is_inline = self._producer, self._pool is None
        for some in split_part(producer.kv_cache, part, producer.digest, is_inline=is_inline):
            self._encoding = asyncio.get_running_loop().run_in_executor(
                producer.executor, producer.encode, some, is_inline
            )
            message = await asyncio.shield(self._encoding)
            await self._write(call, message)

    async def _open(self) -> PushCall:
        timeout = max(self._ends_at - time.monotonic(), 0.001)
        self._call = call = self._producer.stub(self._target).Push(timeout=timeout)
        header = kv_transfer_pb2.PushHeader(
            lease_id=self._target.lease_id,
            epoch=self._target.epoch,
            kv_identity=self._producer.kv_identity,
            pool=None if self._pool is None else pool_message(self._pool),
            digest=self._producer.digest.value,
        )
        await self._write(call, kv_transfer_pb2.PushRequest(header=header))
        if self._pool is not None:
            is_open = is_pool_open(await call.initial_metadata())
            if is_open is None:
                raise await self._push_error(call)
            if not is_open:
                self._pool = None
                self._producer.remember_inline(self._target.epoch)
        return call

    async def _write(self, call: PushCall, message: kv_transfer_pb2.PushRequest) -> None:
        try:
            await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._push_error(call) from error

    async def _finish(self, trailer: kv_transfer_pb2.PushTrailer) -> kv_transfer_pb2.PushResponse:
        call = self._call or await self._open()
        with contextlib.suppress(PushError):  # the response, or its status, says why
            await self._write(call, kv_transfer_pb2.PushRequest(trailer=trailer))
            await call.done_writing()
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise await self._push_error(call) from error

    async def _push_error(self, call: PushCall) -> PushError:
        """Return why a call ended; it has, or does by its deadline."""
        reason = f"{(await call.code()).name}: {await call.details()}"
        return PushError(self._target.lease_id, self._target.endpoint, reason)
