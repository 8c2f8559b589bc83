"""The consumer's side of KvTransferService: checks leases and digests, writes blocks.

Copying, digesting and writing happen in threads, behind the fence of `ReservedBlocks`.
"""

import asyncio
import collections
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import grpc
import grpc.aio
import numpy as np
import torch

from pagoda.rpc.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from pagoda.worker.errors import LeaseError, LeaseMismatchError, LeaseVoidError
from pagoda.worker.kv_transfer.digests import ByteArray, digest_blocks
from pagoda.worker.kv_transfer.leases import Lease, LeaseOutcome, LeaseTable, PrefillResult
from pagoda.worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda.worker.kv_transfer.shared_memory import ArenaError, ArenaReader

logger = logging.getLogger(__name__)

MAX_ARENAS = 16

Context = grpc.aio.ServicerContext[Any, Any]


class KvConsumer(kv_transfer_pb2_grpc.KvTransferServiceServicer):
    """Serves Push and Release for the leases of one worker.

    Args:
        leases: what was promised.
        kv_identity: 16 bytes; pushes of another identity are refused.
        executor: threads for copying, digesting and writing.
        on_bad_blocks: told how many digests did not match.
        clock: unix seconds, for spans.
    """

    def __init__(
        self,
        leases: LeaseTable,
        *,
        kv_identity: bytes,
        executor: Executor,
        on_bad_blocks: Callable[[int], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._leases = leases
        self._kv_identity = kv_identity
        self._executor = executor
        self._on_bad_blocks = on_bad_blocks
        self._clock = clock
        self._arenas: collections.OrderedDict[str, ArenaReader] = collections.OrderedDict()

    async def Push(
        self, request_iterator: AsyncIterator[kv_transfer_pb2.PushRequest], context: Context
    ) -> kv_transfer_pb2.PushResponse:
        """Take one lease's blocks."""
        header = await self._read_header(request_iterator, context)
        try:
            lease = self._begin(header)
        except LeaseError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        arena = None
        if header.shared_memory_name:
            arena = self._open_arena(header.shared_memory_name, lease.blocks.block_bytes)
            if arena is None:
                self._leases.pause_push(lease)
                return kv_transfer_pb2.PushResponse(needs_inline=True)
        reason = "the stream ended without a trailer"
        try:
            return await self._receive(lease, arena, request_iterator)
        except LeaseVoidError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except LeaseMismatchError as error:
            reason = str(error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except TimeoutError:
            reason = f"no message within {self._leases.lease_seconds:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        finally:  # also when the stream broke, which cancels this call
            self._leases.settle(lease, LeaseOutcome.BROKEN, reason=reason)

    async def Release(
        self, request: kv_transfer_pb2.ReleaseRequest, context: Context
    ) -> kv_transfer_pb2.ReleaseResponse:
        """The producer gives a lease up."""
        self._leases.give_up(request.lease_id, request.epoch, request.reason)
        return kv_transfer_pb2.ReleaseResponse()

    async def _read_header(
        self, requests: AsyncIterator[kv_transfer_pb2.PushRequest], context: Context
    ) -> kv_transfer_pb2.PushHeader:
        try:
            message = await self._next(requests)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no header came")
        if message is None or not message.HasField("header"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message of a push must be its header"
            )
        return message.header

    async def _next(
        self, requests: AsyncIterator[kv_transfer_pb2.PushRequest]
    ) -> kv_transfer_pb2.PushRequest | None:
        async with asyncio.timeout(self._leases.lease_seconds):
            return await anext(requests, None)

    def _begin(self, header: kv_transfer_pb2.PushHeader) -> Lease:
        if header.kv_identity != self._kv_identity:
            raise LeaseMismatchError(
                f"KV identity {header.kv_identity.hex()} is not mine, {self._kv_identity.hex()}: "
                "both workers must run the same model, dtype and block size"
            )
        lease = self._leases.begin_push(header.lease_id, header.epoch)
        lease.started_unix_seconds = lease.started_unix_seconds or self._clock()
        return lease

    def _open_arena(self, name: str, slot_bytes: int) -> ArenaReader | None:
        arena = self._arenas.get(name)
        if arena is None:
            try:
                arena = ArenaReader(name, slot_bytes=slot_bytes)
            except ArenaError as error:
                logger.info("payloads will travel inline: %s", error)
                return None
            self._arenas[name] = arena
            if len(self._arenas) > MAX_ARENAS:
                self._arenas.popitem(last=False)
        self._arenas.move_to_end(name)
        return arena

    async def _receive(
        self,
        lease: Lease,
        arena: ArenaReader | None,
        requests: AsyncIterator[kv_transfer_pb2.PushRequest],
    ) -> kv_transfer_pb2.PushResponse:
        event_loop = asyncio.get_running_loop()
        lease.used_shared_memory = arena is not None
        while (message := await self._next(requests)) is not None:
            if message.HasField("trailer"):
                return self._finish(lease, message.trailer)
            if not message.HasField("blocks"):
                raise LeaseMismatchError("a push has one header, then blocks, then one trailer")
            bad_blocks = await event_loop.run_in_executor(
                self._executor, _write, lease.blocks, arena, message.blocks.blocks
            )
            if bad_blocks is None:
                raise LeaseVoidError(lease.lease_id, "settled while its blocks were under way")
            lease.num_received_blocks += len(message.blocks.blocks)
            lease.num_received_bytes += len(message.blocks.blocks) * lease.blocks.block_bytes
            if bad_blocks:
                lease.bad_blocks.update(bad_blocks)
                self._on_bad_blocks(len(bad_blocks))
                logger.warning(
                    "lease %s: digests of blocks %s do not match; they will be recomputed",
                    lease.lease_id,
                    bad_blocks,
                )
            self._leases.renew(lease)
        raise LeaseMismatchError("the push ended without a trailer")

    def _finish(
        self, lease: Lease, trailer: kv_transfer_pb2.PushTrailer
    ) -> kv_transfer_pb2.PushResponse:
        result = PrefillResult(
            num_computed_tokens=trailer.num_computed_tokens,
            first_token_id=trailer.first_token_id,
            is_finished=trailer.is_finished,
        )
        self._leases.settle(lease, LeaseOutcome.RECEIVED, result=result)
        return kv_transfer_pb2.PushResponse(
            num_blocks=lease.num_received_blocks - len(lease.bad_blocks),
            bad_blocks=sorted(lease.bad_blocks),
        )


def _write(
    blocks: ReservedBlocks, arena: ArenaReader | None, messages: Sequence[kv_transfer_pb2.Block]
) -> list[int] | None:
    """Copy, verify and write one message's blocks. Returns bad indices, None if fenced.

    The payload is copied before it is digested: what was verified is what is written, whoever else
    still writes to the arena.
    """
    payloads: ByteArray = np.empty((len(messages), blocks.block_bytes), dtype=np.uint8)
    for row, message in zip(payloads, messages, strict=True):
        _copy_payload(blocks, arena, message, row)
    digests = digest_blocks(payloads)
    is_good = [d == message.digest for d, message in zip(digests, messages, strict=True)]
    good = [message.index for message, ok in zip(messages, is_good, strict=True) if ok]
    bad = [message.index for message, ok in zip(messages, is_good, strict=True) if not ok]
    if good:
        tensor = torch.from_numpy(payloads if not bad else payloads[is_good])
        if not blocks.write(good, tensor):
            return None
    return bad if blocks.is_open else None


def _copy_payload(
    blocks: ReservedBlocks,
    arena: ArenaReader | None,
    message: kv_transfer_pb2.Block,
    out: ByteArray,
) -> None:
    if not blocks.covers(message.index):
        raise LeaseMismatchError(
            f"block {message.index} is not in [{blocks.first_block}, {blocks.num_blocks})"
        )
    if message.num_bytes != blocks.block_bytes:
        raise LeaseMismatchError(
            f"block {message.index} has {message.num_bytes} bytes, must have {blocks.block_bytes}"
        )
    if message.payload:
        if len(message.payload) != blocks.block_bytes:
            raise LeaseMismatchError(f"block {message.index} carries {len(message.payload)} bytes")
        out[:] = np.frombuffer(message.payload, dtype=np.uint8)
        return
    if arena is None:
        raise LeaseMismatchError(f"block {message.index} has no payload and no arena was named")
    try:
        arena.take(message.arena_offset, out)
    except ArenaError as error:
        raise LeaseMismatchError(f"block {message.index}: {error}") from error
