"""The consumer's side of KvTransferService: checks leases, has blocks read, verified and written.

That happens in threads, behind the fence of `ReservedBlocks`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import grpc
import grpc.aio

from pagoda.rpc.v1 import kv_transfer_pb2, kv_transfer_pb2_grpc
from pagoda_engine import KvCache
from pagoda_engine.cache import PeerPool, PeerPoolError
from pagoda_worker.errors import LeaseError, LeaseMismatchError, LeaseVoidError
from pagoda_worker.kv_transfer.base import PushTrailer
from pagoda_worker.kv_transfer.leases import Lease, LeaseOutcome, LeaseTable
from pagoda_worker.kv_transfer.peer_pools import PeerPools
from pagoda_worker.kv_transfer.pool_codec import (
    DigestKind,
    digest_kind,
    pool_answer,
    pool_handle,
)
from pagoda_worker.kv_transfer.received_blocks import take_blocks

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class KvConsumer(kv_transfer_pb2_grpc.KvTransferServiceServicer):
    """Serves Push for the leases of one worker.

    Args:
        leases: what was promised.
        kv_cache: whose blocks they are.
        kv_identity: 16 bytes; pushes of another identity are refused.
        executor: threads for opening pools, reading, digesting and writing.
        on_bad_blocks: told how many digests did not match.
        clock: unix seconds, for spans.
    """

    def __init__(
        self,
        leases: LeaseTable,
        *,
        kv_cache: KvCache,
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
        self._pools = PeerPools(kv_cache, executor)

    async def Push(
        self, request_iterator: AsyncIterator[kv_transfer_pb2.PushRequest], context: Context
    ) -> kv_transfer_pb2.PushResponse:
        """Take one lease's blocks."""
        header = await self._read_header(request_iterator, context)
        try:
            lease = self._begin(header)
        except LeaseError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        reason = "the producer cancelled its push, or this worker stops"
        try:
            pool = await self._open_pool(lease, header)
            if header.HasField("pool"):
                await context.send_initial_metadata(pool_answer(pool is not None))
            return await self._receive(lease, pool, digest_kind(header.digest), request_iterator)
        except LeaseVoidError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except LeaseMismatchError as error:
            reason = str(error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except PeerPoolError as error:
            self._pools.lose(lease.producer_id)  # the next push opens it anew
            reason = f"the producer's pool: {error}"
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        except TimeoutError:
            reason = f"no message within {self._leases.lease_seconds:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        except Exception as error:  # ours; the sequence is computed here
            logger.exception("lease %s: its blocks could not be taken", lease.lease_id)
            reason = f"the consumer failed: {type(error).__name__}: {error}"
            await context.abort(grpc.StatusCode.INTERNAL, reason)
        finally:  # also when this call is cancelled
            self._leases.settle(lease, LeaseOutcome.BROKEN, reason=reason)

    def on_worker(self, worker_id: str, status: object | None) -> None:
        """A worker was heard of (status) or lost (None): its pool is closed then."""
        if status is None:
            self._pools.lose(worker_id)

    def close(self) -> None:
        """Close the pools of all producers."""
        self._pools.close()

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

    async def _open_pool(self, lease: Lease, header: kv_transfer_pb2.PushHeader) -> PeerPool | None:
        if not header.HasField("pool"):
            return None
        try:
            handle = pool_handle(header.pool)
        except PeerPoolError as error:
            logger.warning("KV blocks of %s come as gRPC payloads: %s", lease.producer_id, error)
            return None
        return await self._pools.open(lease.producer_id, handle)

    async def _receive(
        self,
        lease: Lease,
        pool: PeerPool | None,
        digest: DigestKind,
        requests: AsyncIterator[kv_transfer_pb2.PushRequest],
    ) -> kv_transfer_pb2.PushResponse:
        event_loop = asyncio.get_running_loop()
        lease.transport = "inline" if pool is None else pool.kind.value
        while (message := await self._next(requests)) is not None:
            if message.HasField("trailer"):
                return self._finish(lease, message.trailer)
            if not message.HasField("blocks"):
                raise LeaseMismatchError("a push has one header, then blocks, then one trailer")
            bad_blocks = await event_loop.run_in_executor(
                self._executor, take_blocks, lease.blocks, pool, digest, message.blocks
            )
            if bad_blocks is None:
                raise LeaseVoidError(lease.lease_id, "settled while its blocks were under way")
            lease.num_received_bytes += sum(block.num_bytes for block in message.blocks.blocks)
            self._note_bad(lease, bad_blocks)
            self._leases.renew(lease)
        raise LeaseMismatchError("the push ended before its trailer; its producer may have died")

    def _note_bad(self, lease: Lease, bad_blocks: Sequence[int]) -> None:
        new = sorted(set(bad_blocks) - lease.bad_blocks)
        if new:  # each counts once, however many of its layers are bad
            lease.bad_blocks.update(new)
            self._on_bad_blocks(len(new))
            logger.warning(
                "lease %s: digests of blocks %s do not match; they will be recomputed",
                lease.lease_id,
                new,
            )

    def _finish(
        self, lease: Lease, trailer: kv_transfer_pb2.PushTrailer
    ) -> kv_transfer_pb2.PushResponse:
        if not lease.blocks.is_open:
            raise LeaseVoidError(lease.lease_id, "settled before its trailer came")
        result = PushTrailer(
            num_computed_tokens=trailer.num_computed_tokens,
            first_token_id=trailer.first_token_id,
            is_finished=trailer.is_finished,
            finish_reason=trailer.finish_reason,
        )
        self._leases.settle(lease, LeaseOutcome.RECEIVED, result=result)
        blocks = lease.blocks
        is_bad = {index for index in lease.bad_blocks if not blocks.is_complete(index)}
        return kv_transfer_pb2.PushResponse(
            num_blocks=blocks.num_complete,
            bad_blocks=sorted(is_bad.union(blocks.incomplete())),
        )
