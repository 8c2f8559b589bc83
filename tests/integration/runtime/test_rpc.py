import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc
from opentelemetry import trace
from support.servers import free_port

from pagoda.rpc.v1 import kv_store_pb2_grpc
from pagoda.rpc.v1.kv_store_pb2 import (
    DESCRIPTOR,
    GetRequest,
    GetResponse,
    MatchRequest,
    MatchResponse,
    PutBlock,
    PutRequest,
    PutResponse,
    StoredBlock,
)
from pagoda_runtime import rpc_client, rpc_server
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import RpcServerError
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.rpc_server import grpc_server, rpc_address
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry, tracer

pytestmark = pytest.mark.integration
KvStoreService = DESCRIPTOR.services_by_name["KvStoreService"]


@pytest.mark.parametrize("name", [name for name, _ in [*rpc_server._OPTIONS, *rpc_client._OPTIONS]])
def test_grpc_knows_every_option_by_this_name(name: str) -> None:
    """It ignores others: a server that took a misspelt one refused keepalive after 65 s."""
    assert name.encode() in Path(cygrpc.__file__).read_bytes()


class Store(kv_store_pb2_grpc.KvStoreServiceServicer):
    """Answers with what it was sent and notes the current trace."""

    def __init__(self) -> None:
        self.trace_ids: list[int] = []
        self.cancelled = asyncio.Event()

    def note(self) -> None:
        self.trace_ids.append(trace.get_current_span().get_span_context().trace_id)

    async def Match(self, request: MatchRequest, context: Any) -> MatchResponse:
        self.note()
        if request.block_hashes == b"hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return MatchResponse(tiers=[1])

    async def Get(self, request: GetRequest, context: Any) -> AsyncIterator[GetResponse]:
        self.note()
        for _ in range(3):
            yield GetResponse(blocks=[StoredBlock(payload=b"x" * (1 << 20))])

    async def Put(self, requests: Any, context: Any) -> PutResponse:
        self.note()
        return PutResponse(num_stored=sum([len(r.blocks) async for r in requests]))


@contextlib.asynccontextmanager
async def connected(
    store: Store, token: str = "t", used_token: str | None = None
) -> "AsyncIterator[kv_store_pb2_grpc.KvStoreServiceAsyncStub]":
    def add(server: grpc.aio.Server) -> None:
        kv_store_pb2_grpc.add_KvStoreServiceServicer_to_server(store, server)

    async with (
        grpc_server(host="127.0.0.1", port=0, token=token, add=add) as port,
        grpc_channel(
            f"127.0.0.1:{port}", token=token if used_token is None else used_token
        ) as channel,
    ):
        yield kv_store_pb2_grpc.KvStoreServiceStub(channel)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[None]:
    setup_telemetry("test", CommonSettings(trace_dir=tmp_path), instance_id="t")
    yield
    shutdown_telemetry()


def put_requests() -> Iterator[PutRequest]:
    for _ in range(4):
        yield PutRequest(blocks=[PutBlock(payload=b"x" * (1 << 20))])


@pytest.mark.usefixtures("traced")
async def test_all_kinds_of_calls_carry_token_and_trace() -> None:
    store = Store()
    async with connected(store) as stub:
        with tracer().start_as_current_span("root") as span:
            matched = await stub.Match(MatchRequest(), timeout=60)
            got = [response async for response in stub.Get(GetRequest(), timeout=60)]
            put = await stub.Put(put_requests(), timeout=60)

    assert (list(matched.tiers), len(got), put.num_stored) == ([1], 3, 4)
    assert store.trace_ids == [span.get_span_context().trace_id] * 3


@pytest.mark.parametrize("used_token", ["", "wrong"])
async def test_a_wrong_token_is_refused_on_all_kinds_of_calls(used_token: str) -> None:
    store = Store()
    async with connected(store, used_token=used_token) as stub:
        for call in (
            lambda: stub.Match(MatchRequest(), timeout=60),
            lambda: anext(aiter(stub.Get(GetRequest(), timeout=60))),
            # With messages on their way, gRPC may report the broken write instead of the refusal.
            lambda: stub.Put(iter(()), timeout=60),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="PAGODA_CLUSTER_TOKEN") as raised:
                await call()
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED

    assert store.trace_ids == []


async def test_without_the_token_a_call_is_refused_before_it_is_received() -> None:
    """Messages are of up to 64 MiB: those of strangers must take no memory."""

    async def nothing_yet() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with (
        grpc_server(
            host="127.0.0.1", port=0, token="t",
            add=lambda server: kv_store_pb2_grpc.add_KvStoreServiceServicer_to_server(
                Store(), server
            ),
        ) as port,
        grpc_channel(f"127.0.0.1:{port}", token="wrong") as channel,
    ):  # fmt: skip
        match = channel.stream_unary(f"/{KvStoreService.full_name}/Match")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await match(nothing_yet(), timeout=60)

    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_without_a_token_on_loopback_anybody_may_call() -> None:
    async with connected(Store(), token="") as stub:
        assert list((await stub.Match(MatchRequest(), timeout=60)).tiers) == [1]


async def test_a_call_without_a_deadline_is_our_bug() -> None:
    async with connected(Store()) as stub:
        with pytest.raises(ValueError, match="Match was called without timeout"):
            await stub.Match(MatchRequest())


async def test_a_deadline_cancels_the_handler() -> None:
    store = Store()
    async with connected(store) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Match(MatchRequest(block_hashes=b"hang"), timeout=0.1)
        async with asyncio.timeout(60):
            await store.cancelled.wait()

    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_health_service_needs_no_token() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

    async with (
        grpc_server(host="127.0.0.1", port=0, token="t", add=lambda server: None) as port,
        grpc_channel(f"127.0.0.1:{port}", token="") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_no_token_beyond_loopback_is_refused() -> None:
    with pytest.raises(RpcServerError, match="PAGODA_CLUSTER_TOKEN"):
        async with grpc_server(host="0.0.0.0", port=0, token="", add=lambda server: None):
            pass


async def test_a_port_in_use_is_named() -> None:
    port = free_port()

    async with grpc_server(host="127.0.0.1", port=port, token="", add=lambda server: None):
        with pytest.raises(RpcServerError, match=f"127.0.0.1:{port}"):
            async with grpc_server(host="127.0.0.1", port=port, token="", add=lambda server: None):
                pass


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_address_of_ipv6_may_have_brackets_or_none(host: str) -> None:
    store = Store()

    def add(server: grpc.aio.Server) -> None:
        kv_store_pb2_grpc.add_KvStoreServiceServicer_to_server(store, server)

    async with (
        grpc_server(host=host, port=0, token="t", add=add) as port,
        grpc_channel(rpc_address(host, port), token="t") as channel,
    ):
        stub = kv_store_pb2_grpc.KvStoreServiceStub(channel)
        answer = await stub.Match(MatchRequest(), timeout=60)
    assert list(answer.tiers) == [1]
