"""A KvStoreService in this process, served on real gRPC."""

from collections.abc import AsyncIterator

import pytest_asyncio
from support.write_through import Store

from pagoda.rpc.v1 import kv_store_pb2_grpc
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.rpc_server import grpc_server


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[Store, object]]:
    store = Store()

    def add(server) -> None:
        kv_store_pb2_grpc.add_KvStoreServiceServicer_to_server(store, server)

    async with (
        grpc_server(host="127.0.0.1", port=0, token="", add=add) as port,
        grpc_channel(f"127.0.0.1:{port}", token="") as channel,
    ):
        yield store, channel
