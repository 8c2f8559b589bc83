"""KvStoreService over a BlockStore. Authentication is the runtime's gRPC server's business."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from pagoda.rpc.v1 import kv_store_pb2, kv_store_pb2_grpc
from pagoda_kvstore import codec
from pagoda_kvstore.errors import InvalidBlockRequestError
from pagoda_kvstore.store import BlockStore, PutOutcome

MAX_SENDING = 64
"""Messages of all Gets on their way at once, of about 1 MiB, which take four times that. Fewer keep
a host's NVMe and network busy; a worker computes what it does not get."""
WAIT_SECONDS = 1.0  # for a place among them
MAX_GET_SECONDS = 75.0

Context = grpc.aio.ServicerContext[Any, Any]


class KvStoreServicer(kv_store_pb2_grpc.KvStoreServiceServicer):
    """Answers the RPCs; requests that can never be served end with INVALID_ARGUMENT."""

    def __init__(self, store: BlockStore) -> None:
        """Serve `store`."""
        self._store = store
        self._sending = asyncio.Semaphore(MAX_SENDING)

    async def Match(  # noqa: D102
        self, request: kv_store_pb2.MatchRequest, context: Context
    ) -> kv_store_pb2.MatchResponse:
        try:
            hashes = codec.decode_hashes(request.kv_identity, request.block_hashes)
        except InvalidBlockRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return codec.encode_tiers(self._store.match(request.kv_identity, hashes))

    async def Get(  # type: ignore[override]  # noqa: D102  (writes, to know when it was sent)
        self, request: kv_store_pb2.GetRequest, context: Context
    ) -> None:
        try:
            hashes = codec.decode_hashes(request.kv_identity, request.block_hashes)
        except InvalidBlockRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        # What nobody reads keeps its place until the deadline: a server cannot take it back.
        remaining_seconds = context.time_remaining()
        if remaining_seconds is None or remaining_seconds > MAX_GET_SECONDS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the deadline must be {MAX_GET_SECONDS:g} s away or less",
            )
        groups = self._store.get(request.kv_identity, hashes)
        while True:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._sending.acquire()
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MAX_SENDING} messages are being sent, and none was read for a second",
                )
            try:
                group = await anext(groups, None)
                if group is None:
                    return
                await context.write(codec.encode_found(group))
            except grpc.aio.InternalError:
                return  # whoever asked has gone
            finally:
                self._sending.release()

    async def Put(  # noqa: D102
        self, request_iterator: AsyncIterator[kv_store_pb2.PutRequest], context: Context
    ) -> kv_store_pb2.PutResponse:
        counts = dict.fromkeys(PutOutcome, 0)
        try:
            async for request in request_iterator:
                for block in codec.decode_put(request):
                    counts[self._store.put(block)] += 1
        except InvalidBlockRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return kv_store_pb2.PutResponse(
            num_stored=counts[PutOutcome.STORED],
            num_known=counts[PutOutcome.KNOWN],
            num_refused=counts[PutOutcome.REFUSED],
        )
