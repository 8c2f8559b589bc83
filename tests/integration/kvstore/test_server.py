"""KvStoreService over real gRPC."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import pytest_asyncio
from integration.kvstore.kv_client import TIMEOUT_SECONDS, get, put, stub_for
from support.stored_blocks import IDENTITY, make_block, make_hash

from pagoda.rpc.v1 import kv_event_pb2, kv_store_pb2, kv_store_pb2_grpc
from pagoda_kvstore import server
from pagoda_kvstore.app import open_store
from pagoda_kvstore.config import KvstoreSettings
from pagoda_kvstore.server import KvStoreServicer
from pagoda_runtime.rpc_client import grpc_channel
from pagoda_runtime.rpc_server import grpc_server

if TYPE_CHECKING:
    from pagoda.rpc.v1.kv_store_pb2_grpc import KvStoreServiceAsyncStub as Stub

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[str]:
    async with open_store(KvstoreSettings(), tmp_path) as (store, _):
        servicer = KvStoreServicer(store)
        async with grpc_server(
            host="127.0.0.1",
            port=0,
            token="secret",
            add=lambda s: kv_store_pb2_grpc.add_KvStoreServiceServicer_to_server(servicer, s),
        ) as port:
            yield f"127.0.0.1:{port}"


@pytest_asyncio.fixture
async def stub(endpoint: str) -> AsyncIterator["Stub"]:
    async with grpc_channel(endpoint, token="secret") as channel:
        yield stub_for(channel)


async def test_blocks_of_one_mebibyte_come_back(stub: "Stub") -> None:
    blocks = [make_block(name, num_bytes=1 << 20) for name in "abcd"]
    response = await put(stub, blocks)
    assert (response.num_stored, response.num_known, response.num_refused) == (4, 0, 0)
    found = await get(stub, [block.key.block_hash for block in blocks])
    assert [(b.block_hash, b.digest, b.payload) for b in found] == [
        (b.key.block_hash, b.digest, b.payload) for b in blocks
    ]
    assert {block.tier for block in found} == {kv_event_pb2.TIER_CPU}


async def test_wrong_token_is_refused(endpoint: str) -> None:
    async with grpc_channel(endpoint, token="guess") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get(stub_for(channel), [make_hash("a")])
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_concurrent_puts_of_one_block_store_it_once(stub: "Stub") -> None:
    block = make_block("a", num_bytes=100_000)
    responses = await asyncio.gather(*(put(stub, [block]) for _ in range(8)))
    assert sum(response.num_stored for response in responses) == 1
    assert sum(response.num_known for response in responses) == 7


async def test_bad_digest_is_refused_and_the_rest_stored(stub: "Stub") -> None:
    bad = dataclasses.replace(make_block("bad"), digest=bytes(16))
    response = await put(stub, [make_block("a"), bad, make_block("b")])
    assert (response.num_stored, response.num_refused) == (2, 1)
    assert len(await get(stub, [make_hash("bad")])) == 0


@pytest.fixture
def two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SENDING", 2)
    monkeypatch.setattr(server, "WAIT_SECONDS", 0.05)


@pytest.mark.usefixtures("two_places")
async def test_what_nobody_reads_takes_bounded_memory(
    stub: "Stub", endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds all places taken is refused, and computes; they are free once calls have ended."""
    blocks = [make_block(str(number), num_bytes=1 << 20) for number in range(16)]
    hashes = [block.key.block_hash for block in blocks]
    await put(stub, blocks)
    request = kv_store_pb2.GetRequest(kv_identity=IDENTITY, block_hashes=b"".join(hashes))

    unread = []
    async with grpc_channel(endpoint, token="secret") as channel:

        async def get_until_refused() -> None:
            while True:  # until what is on the way fills the connection; these may be refused, too
                unread.append(stub_for(channel).Get(request, timeout=TIMEOUT_SECONDS))
                await get(stub, hashes)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_until_refused()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in unread:
            call.cancel()
    monkeypatch.setattr(server, "WAIT_SECONDS", TIMEOUT_SECONDS)
    assert len(await get(stub, hashes)) == 16


async def test_who_leaves_in_the_middle_of_a_get_is_no_error(
    stub: "Stub", endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = [make_block(str(number), num_bytes=1 << 20) for number in range(16)]
    hashes = [block.key.block_hash for block in blocks]
    await put(stub, blocks)
    request = kv_store_pb2.GetRequest(kv_identity=IDENTITY, block_hashes=b"".join(hashes))
    for _ in range(10):
        async with grpc_channel(endpoint, token="secret") as channel:
            await anext(aiter(stub_for(channel).Get(request, timeout=TIMEOUT_SECONDS)))
    assert len(await get(stub, hashes)) == 16
    assert not caplog.records


async def test_a_get_has_a_deadline(endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = stub_for(channel).Get(
            kv_store_pb2.GetRequest(kv_identity=IDENTITY, block_hashes=make_hash("a")),
            metadata=(("authorization", "Bearer secret"),),
        )
        with pytest.raises(grpc.aio.AioRpcError, match="75 s away or less") as caught:
            await anext(aiter(call))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_match_ends_at_the_first_miss(stub: "Stub") -> None:
    await put(stub, [make_block("a"), make_block("b"), make_block("d")])
    packed = b"".join(make_hash(name) for name in "abcd")
    response = await stub.Match(
        kv_store_pb2.MatchRequest(kv_identity=IDENTITY, block_hashes=packed),
        timeout=TIMEOUT_SECONDS,
    )
    assert list(response.tiers) == [kv_event_pb2.TIER_CPU] * 2


@pytest.mark.parametrize(
    ("kv_identity", "packed", "message"),
    [
        (b"short", bytes(16), "length of kv_identity is 5, must be 16 bytes"),
        (IDENTITY, bytes(17), "length of block_hashes is 17, must be a multiple of 16"),
        (IDENTITY, bytes(16 * 65_537), "number of block_hashes is 65537, must be at most 65536"),
    ],
)
async def test_malformed_request_names_field_and_limit(
    stub: "Stub", kv_identity: bytes, packed: bytes, message: str
) -> None:
    request = kv_store_pb2.MatchRequest(kv_identity=kv_identity, block_hashes=packed)
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await stub.Match(request, timeout=TIMEOUT_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_malformed_block_ends_the_put(stub: "Stub") -> None:
    bad = dataclasses.replace(make_block("a"), digest=b"short")
    with pytest.raises(grpc.aio.AioRpcError, match="length of digest is 5"):
        await put(stub, [bad])
