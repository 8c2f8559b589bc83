"""Which connections have a place, and what the others get."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import orjson
import pytest
from prometheus_client import REGISTRY
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from pagoda_gateway.http import connection
from pagoda_gateway.http import server as server_module
from pagoda_gateway.http.server import HttpServer, http_server, listen

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """A server whose answers wait while it is held."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.goes_on = asyncio.Event()
        self.answer = "well"
        self.http: HttpServer
        self.num_asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_asked += 1
        await self.goes_on.wait()
        await PlainTextResponse(self.answer)(scope, receive, send)

    async def connect(self, first: bytes = b"") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(first)
        return reader, writer


@contextlib.asynccontextmanager
async def serving(max_connections: int) -> AsyncIterator[Server]:
    listener = listen("127.0.0.1", 0)
    server = Server(listener.getsockname()[1])
    async with http_server(server, listener, max_connections=max_connections) as server.http:
        yield server
        server.goes_on.set()


async def rest_of(client: Client) -> bytes:
    """Return what comes until the server closes."""
    async with asyncio.timeout(30):
        try:
            return await client[0].read()
        finally:
            client[1].close()


def counted(action: str) -> float:
    name = "pagoda_http_connections_over_limit_total"
    return REGISTRY.get_sample_value(name, {"action": action}) or 0.0


async def test_a_request_that_was_sent_is_answered_though_many_more_connect() -> None:
    async with serving(2) as server:
        server.goes_on.set()
        clients = [await server.connect() for _ in range(4)]  # none has waited for long
        for _, writer in clients:
            writer.write(REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        answers = [await rest_of(client) for client in clients]
    assert [answer[9:12] for answer in answers] == [b"200", b"200", b"503", b"503"]


async def test_a_refusal_is_an_answer_as_of_any_route() -> None:
    before = counted("refused")
    async with serving(2) as server:
        held = [await server.connect(REQUEST) for _ in range(2)]
        # whole before its request is: its end would else be a reset
        refused = await server.connect(REQUEST + b"x" * 1_000_000)
        head, _, body = (await rest_of(refused)).partition(b"\r\n\r\n")
        server.goes_on.set()
        for reader, writer in held:
            assert b"200" in await reader.readline()
            writer.close()
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in head.splitlines()
    assert orjson.loads(body)["error"]["code"] == "unavailable"
    assert counted("refused") == before + 1


async def test_a_head_that_came_while_the_process_stood_still_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    async with serving(2) as server:
        server.goes_on.set()
        reader, writer = await server.connect(REQUEST[:5])
        await asyncio.sleep(0.01)  # it is waited for
        writer.write(REQUEST[5:])
        time.sleep(0.06)  # noqa: ASYNC251  (all of this process, its server too)
        assert b"200" in await reader.readline()
        writer.close()


async def test_who_waited_without_a_request_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MIN_WAIT_SECONDS", 0.0)
    before = counted("closed")
    async with serving(2) as server:
        server.goes_on.set()
        idle = await server.connect()
        others = [await server.connect(REQUEST) for _ in range(2)]
        with contextlib.suppress(ConnectionResetError):
            assert await rest_of(idle) == b""
        for reader, writer in others:
            assert b"200" in await reader.readline()
            writer.close()
    assert counted("closed") == before + 1


async def test_who_still_reads_an_answer_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MIN_WAIT_SECONDS", 0.0)
    async with serving(2) as server:
        server.goes_on.set()
        server.answer = "x" * 20_000_000
        reader, writer = await server.connect(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        others = [await server.connect(REQUEST) for _ in range(3)]
        async with asyncio.timeout(30):
            await others[-1][0].readline()  # there was room for it, or none
            assert await reader.readexactly(20_000_000) == server.answer.encode()
        for _, other in (*others, (reader, writer)):
            other.close()


async def test_of_many_refused_only_some_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_LEAVING", 0)
    async with serving(2) as server:
        held = [await server.connect(REQUEST) for _ in range(2)]
        assert (await rest_of(await server.connect())).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()


async def test_a_burst_of_refused_ones_has_time_to_send_and_to_read() -> None:
    async with serving(2) as server:
        held = [await server.connect(REQUEST) for _ in range(2)]
        refused = [await server.connect() for _ in range(200)]
        for _ in range(2):  # head and body; what is closed after the first resets the second
            for _, writer in refused:
                writer.write(REQUEST)
                await writer.drain()
        answers = [await rest_of(client) for client in refused]
        for _, writer in held:
            writer.close()
    assert {answer[9:12] for answer in answers} == {b"503"}


async def test_a_refused_one_that_stays_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LEAVE_SECONDS", 0.01)
    async with serving(2) as server:
        held = [await server.connect(REQUEST) for _ in range(2)]
        reader, writer = await server.connect()
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while True:  # until the other side is gone
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0)
        for _, client in (*held, (reader, writer)):
            client.close()


async def answer_to(client: Client, request: bytes) -> tuple[bytes, bytes]:
    """Return the head and the body of an answer."""
    client[1].write(request)
    head = await client[0].readuntil(b"\r\n\r\n")
    return head, await client[0].readexactly(len("well"))


async def test_a_server_that_ends_has_its_clients_connect_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(10) as server, asyncio.timeout(60):
        server.goes_on.set()
        idle, other, busy = [await server.connect() for _ in range(3)]
        for client in (idle, other, busy):
            head, _ = await answer_to(client, REQUEST)
            assert b"connection: close" not in head
        server.goes_on.clear()
        busy[1].write(REQUEST)
        while server.num_asked < 4:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # Who has just been answered may have sent its next request: that is its last one.
        server.http.end_reuse()
        server.goes_on.set()
        assert (await rest_of(busy)).endswith(b"well")
        head, _ = await answer_to(other, REQUEST)
        assert b"connection: close" in head
        assert await rest_of(other) == b""
        monkeypatch.setattr(connection, "MIN_WAIT_SECONDS", 0.0)
        server.http.end_reuse()
        assert await rest_of(idle) == b""
        new = await server.connect()
        head, _ = await answer_to(new, REQUEST)
        assert b"connection: close" in head
        assert await rest_of(new) == b""


async def test_a_server_that_ends_answers_before_a_large_body_and_reads_it() -> None:
    async with serving(10) as server, asyncio.timeout(60):
        server.goes_on.set()
        server.http.end_reuse()
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n"
        client = await server.connect(head)
        assert (await client[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for _ in range(90):
            client[1].write(b"x" * 100_000)
            await client[1].drain()
        assert await rest_of(client) == b"well"
