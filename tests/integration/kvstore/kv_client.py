"""Calls of KvStoreService as tests need them."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import grpc
from support.stored_blocks import IDENTITY

from pagoda.rpc.v1 import kv_store_pb2, kv_store_pb2_grpc
from pagoda_kvstore.block import Block

if TYPE_CHECKING:
    from pagoda.rpc.v1.kv_store_pb2_grpc import KvStoreServiceAsyncStub as Stub

TIMEOUT_SECONDS = 60.0


def stub_for(channel: grpc.aio.Channel) -> "Stub":
    return kv_store_pb2_grpc.KvStoreServiceStub(channel)


async def put(stub: "Stub", blocks: Sequence[Block]) -> kv_store_pb2.PutResponse:
    """One message for each block."""

    async def messages() -> AsyncIterator[kv_store_pb2.PutRequest]:
        for block in blocks:
            request = kv_store_pb2.PutRequest(kv_identity=block.key.kv_identity)
            request.blocks.add(
                block_hash=block.key.block_hash,
                parent_hash=block.parent_hash,
                digest=block.digest,
                payload=block.payload,
            )
            yield request

    return await stub.Put(messages(), timeout=TIMEOUT_SECONDS)


async def get(stub: "Stub", hashes: Sequence[bytes]) -> list[kv_store_pb2.StoredBlock]:
    request = kv_store_pb2.GetRequest(kv_identity=IDENTITY, block_hashes=b"".join(hashes))
    call = stub.Get(request, timeout=TIMEOUT_SECONDS)
    return [block async for response in call for block in response.blocks]
