"""KvStoreService over a BlockStore. Authentication is the runtime's gRPC server's business."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from pagoda.rpc.v1 import kv_store_pb2, kv_store_pb2_grpc
from pagoda_kvstore import codec
from pagoda_kvstore.errors import InvalidBlockRequestError
from pagoda_kvstore.store import BlockStore, PutOutcome

Context = grpc.aio.ServicerContext[Any, Any]


class KvStoreServicer(kv_store_pb2_grpc.KvStoreServiceServicer):
    """Answers the RPCs; requests that can never be served end with INVALID_ARGUMENT."""

    def __init__(self, store: BlockStore, *, max_pin_seconds: float) -> None:
        """Serve `store`; pins that ask for longer than `max_pin_seconds` get that."""
        self._store, self._max_pin_seconds = store, max_pin_seconds

    async def Match(  # noqa: D102
        self, request: kv_store_pb2.MatchRequest, context: Context
    ) -> kv_store_pb2.MatchResponse:
        try:
            hashes = codec.decode_hashes(request.kv_identity, request.block_hashes)
        except InvalidBlockRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return codec.encode_tiers(self._store.match(request.kv_identity, hashes))

    async def Get(  # noqa: D102
        self, request: kv_store_pb2.GetRequest, context: Context
    ) -> AsyncIterator[kv_store_pb2.GetResponse]:
        try:
            hashes = codec.decode_hashes(request.kv_identity, request.block_hashes)
        except InvalidBlockRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        async for group in self._store.get(request.kv_identity, hashes):
            yield codec.encode_found(group)

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

    async def Pin(  # noqa: D102
        self, request: kv_store_pb2.PinRequest, context: Context
    ) -> kv_store_pb2.PinResponse:
        try:
            hashes = codec.decode_hashes(request.kv_identity, request.block_hashes)
            if not request.ttl_seconds >= 0:
                raise InvalidBlockRequestError("ttl_seconds", request.ttl_seconds, "0 or more")
        except InvalidBlockRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        ttl_seconds = min(request.ttl_seconds, self._max_pin_seconds)
        num_pinned = self._store.pin(request.kv_identity, hashes, ttl_seconds)
        return kv_store_pb2.PinResponse(num_pinned=num_pinned)

    async def Stats(  # noqa: D102
        self, request: kv_store_pb2.StatsRequest, context: Context
    ) -> kv_store_pb2.StatsResponse:
        return codec.encode_stats(self._store.stats())
