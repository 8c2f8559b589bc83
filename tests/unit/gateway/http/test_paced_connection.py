"""How much of what arrives is parsed at once, and what is no part of a request."""

import asyncio
import contextlib
import gc
import hashlib
import random
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from pagoda_gateway.http import connection
from pagoda_gateway.http.body_pipe import BodyPipe
from pagoda_gateway.http.paced_connection import (
    MAX_PIPELINED,
    MAX_SILENT_BYTES,
    SLICE_BYTES,
    SLICES_A_TURN,
    PacedConnection,
)
from pagoda_gateway.http.server import HttpServer, http_server, listen

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
PIECE = b"x" * 1000
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Server:
    """Answers with the digest of the body, or without reading it.

    Attributes:
        waits: before an answer.
        reads: whether it reads bodies.
        headers: of all requests.
        http: serves it.
    """

    port: int
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    reads: bool = True
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    http: HttpServer = field(init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.waits.wait()
        body = await Request(scope, receive).body() if self.reads else b""
        self.headers.append(list(scope["headers"]))
        await PlainTextResponse(digest(body))(scope, receive, send)


def digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


@contextlib.asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[Server]:
    listener = listen("127.0.0.1", 0)
    server = Server(listener.getsockname()[1], **fields)
    async with http_server(server, listener) as server.http, asyncio.timeout(60):
        yield server
        server.waits.set()


async def answer(reader: asyncio.StreamReader) -> str:
    """Return an answer's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return (await reader.readexactly(32)).decode()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was seen of parsing: the most requests that waited, the most slices in one turn."""
    seen: Counter[str] = Counter()
    parse: Callable[[PacedConnection, Any], None] = PacedConnection.parse

    def watched(self: PacedConnection, data: bytes) -> None:
        if not seen["slices"]:
            self.loop.call_soon(lambda: seen.update(slices=-seen["slices"]))
        seen["slices"] += 1
        parse(self, data)
        seen["all"] += 1
        seen["most slices"] = max(seen["most slices"], seen["slices"])
        seen["most waiting"] = max(seen["most waiting"], len(self.pipeline))

    monkeypatch.setattr(PacedConnection, "parse", watched)
    return seen


async def test_requests_without_end_wait_in_the_kernel(parsed: Counter[str]) -> None:
    num_requests = 30_000
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET * num_requests)
        while parsed["most waiting"] < MAX_PIPELINED:  # noqa: ASYNC110 - each turn counts
            await asyncio.sleep(0)
        assert not server.headers
        server.waits.set()
        for _ in range(num_requests):
            assert await answer(reader) == digest(b"")
        writer.close()
    assert len(server.headers) == num_requests
    assert parsed["most waiting"] <= MAX_PIPELINED + 1  # two heads may end in a slice
    assert parsed["most slices"] <= SLICES_A_TURN


def random_request(draws: random.Random) -> tuple[bytes, bytes]:
    """Return a request and its body."""
    body = draws.randbytes(draws.choice([0, 1, 100, 5_000, 70_000, 300_000]))
    match draws.choice(["get", "length", "chunks"]):
        case "get":
            return GET, b""
        case "length":
            head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            return head.encode() + body, body
    chunks, at = [], 0
    while at < len(body):
        size = draws.choice([1, 7, 4_096, 50_000]) if len(body) > 100 else len(body)
        piece = body[at : at + size]
        chunks.append(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
        at += size
    trailers = b"x-more: 1\r\n" * draws.choice([0, 0, 3])
    return CHUNKED + b"".join(chunks) + b"0\r\n" + trailers + b"\r\n", body


@pytest.mark.parametrize("seed", range(4))
async def test_every_request_is_read_however_it_is_cut(seed: int) -> None:
    draws = random.Random(seed)
    requests = [random_request(draws) for _ in range(60)]
    sent = b"".join(request for request, _ in requests)
    async with serving() as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def send() -> None:
            at = 0
            while at < len(sent):
                size = draws.choice([1, 100, 4_095, 4_096, 4_097, 65_536, 1_000_000])
                writer.write(sent[at : at + size])
                await writer.drain()
                at += size

        sending = asyncio.create_task(send())
        for _, body in requests:
            assert await answer(reader) == digest(body)
        await sending
        writer.close()
    assert all(b"x-more" not in dict(headers) for headers in server.headers)


async def test_what_comes_behind_a_body_is_no_header() -> None:
    trailers = b"authorization: Bearer x\r\nexpect: 100-continue\r\n"
    async with serving() as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(CHUNKED + b"2\r\nhi\r\n0\r\n" + trailers + b"\r\n" + GET)
        assert await answer(reader) == digest(b"hi")
        assert await answer(reader) == digest(b"")
        writer.close()
    names = [name for name, _ in server.headers[0]]
    assert names == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("more", [b"a:b\r\n", b"y"])
async def test_trailers_without_end_are_refused(more: bytes, parsed: Counter[str]) -> None:
    answered = b""
    async with serving() as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(CHUNKED + b"0\r\nx: " + more * (10_000_000 // len(more)))
        with contextlib.suppress(ConnectionResetError):  # it was still sending
            answered = await reader.read()
        writer.close()
    assert answered[:13] in (b"", b"HTTP/1.1 431 ")
    assert not server.headers
    assert (parsed["all"] - 2) * SLICE_BYTES <= MAX_SILENT_BYTES


async def test_a_body_that_was_answered_early_is_not_parsed(parsed: Counter[str]) -> None:
    async with serving(reads=False) as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(CHUNKED)
        assert await answer(reader) == digest(b"")
        num_parsed = parsed["all"]
        assert await reader.read() == b""  # this side has ended
        for _ in range(100):
            writer.write(b"1\r\nx\r\n" * 10_000)
            await writer.drain()
        assert parsed["all"] == num_parsed
        writer.close()


async def test_a_body_of_known_length_that_was_answered_early_has_an_end() -> None:
    async with serving(reads=False) as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert await answer(reader) == digest(b"")
        writer.write(b"x" * 1_000_000 + GET)
        assert await answer(reader) == digest(b"")
        writer.close()


class Clock:
    """The event loop's, which can be put forward: nothing here waits for a timer.

    Attributes:
        ahead: of the real time, in seconds.
    """

    def __init__(self) -> None:
        self.ahead = 0.0

    async def forward(self, seconds: float) -> None:
        """Have so much time pass, and whatever is due done."""
        self.ahead += seconds + 0.001  # timers are as exact as the real clock
        for _ in range(3):  # turns: timers become due, are called, and what they ended is told so
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, loop = Clock(), asyncio.get_running_loop()
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + clock.ahead)
    return clock


async def send_all(server: Server, writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send on the server's only connection, and return when it has come."""
    (served,) = server.http.server_state.connections
    end = served._num_received + len(data)
    writer.write(data)
    while served._num_received < end:  # noqa: ASYNC110 - another turn of the loop, no time
        await asyncio.sleep(0)


async def answered_early(server: Server, *, length: int | None, first: bytes = POST) -> Client:
    """Return a connection whose request has its answer, and a body still to come."""
    server.waits.set()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    sized = first + b"content-length: %d\r\n\r\n" % (length or 0)
    writer.write(CHUNKED if length is None else sized)
    assert await answer(reader) == digest(b"")
    return reader, writer


@pytest.mark.parametrize("behind", [GET[:5], b""])
async def test_a_connection_is_idle_after_a_body_that_was_answered_early(
    clock: Clock, behind: bytes
) -> None:
    async with serving(reads=False) as server:
        reader, writer = await answered_early(server, length=1_000_000)
        await send_all(server, writer, b"x" * 1_000_000 + behind)
        await clock.forward(connection.HEAD_SECONDS)
        await clock.forward(connection.LAST_LOOK_SECONDS)
        if behind:  # a head has begun: that has its time, as any other
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        else:
            writer.write(GET)
            assert await answer(reader) == digest(b"")
        writer.close()


async def test_a_connection_ends_that_is_idle_for_long_after_such_a_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(reads=False) as server:
        reader, writer = await answered_early(server, length=len(PIECE))
        (served,) = server.http.server_state.connections
        monkeypatch.setattr(served, "timeout_keep_alive", 0.01)
        writer.write(PIECE)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("length", [1 << 40, None])
async def test_a_body_that_was_answered_early_may_come_for_long(
    clock: Clock, length: int | None
) -> None:
    piece = b"x" * int(connection.REST_SECONDS * connection.MIN_BYTES_PER_SECOND)
    if length is None:
        piece = b"%x\r\n%b\r\n" % (len(piece), piece)
    async with serving(reads=False) as server:
        _, writer = await answered_early(server, length=length)
        for _ in range(4):
            await send_all(server, writer, piece)
            await clock.forward(connection.REST_SECONDS)
            assert len(server.http.server_state.connections) == 1
        writer.close()


@pytest.mark.parametrize("length", [1 << 40, None])
@pytest.mark.parametrize(
    ("limit", "num_pieces"),
    [("MAX_DISCARDED_BYTES", 1000), ("MIN_BYTES_PER_SECOND", 1000), (None, 1000), (None, 0)],
)
async def test_a_body_that_was_answered_early_has_bounds(
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    length: int | None,
    limit: str | None,
    num_pieces: int,
) -> None:
    if limit:
        monkeypatch.setattr(connection, limit, {"MAX": 2000, "MIN": 1 << 50}[limit[:3]])
    async with serving(reads=False) as server:
        _, writer = await answered_early(server, length=length)
        await send_all(server, writer, PIECE * num_pieces)
        await clock.forward(connection.REST_SECONDS)
        is_there = bool(server.http.server_state.connections)
        assert is_there == (limit is None and num_pieces > 0)
        await clock.forward(connection.REST_SECONDS)  # nothing more has come
        assert not server.http.server_state.connections
        writer.close()


async def test_a_server_that_ends_reads_such_a_body_on_and_takes_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MIN_WAIT_SECONDS", 0.0)
    async with serving(reads=False) as server:
        reader, writer = await answered_early(server, length=1_000_000)
        writer.write(PIECE)
        server.http.end_reuse()
        assert await reader.read() == b""  # this side has ended
        for _ in range(999):
            writer.write(PIECE)
            await writer.drain()
        assert len(server.http.server_state.connections) == 1
        writer.close()


@pytest.mark.parametrize("first", [b"POST / HTTP/1.0\r\n", POST + b"connection: close\r\n"])
@pytest.mark.parametrize("behind", [b"", GET])
async def test_a_last_request_that_was_answered_early_is_read_on(
    first: bytes, behind: bytes
) -> None:
    async with serving(reads=False) as server:
        reader, writer = await answered_early(server, length=1_000_000, first=first)
        assert await reader.read() == b""  # this side has ended
        for _ in range(1000):
            writer.write(PIECE)
            await writer.drain()
        writer.write(behind)
        await writer.drain()
        assert len(server.http.server_state.connections) == 1
        writer.close()
        while server.http.server_state.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert len(server.headers) == 1


@pytest.mark.parametrize("num_bytes", [70_000, 150_000, 300_000, 1_000_000])
async def test_the_rest_of_a_body_that_was_answered_is_read(num_bytes: int) -> None:
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {num_bytes}\r\n\r\n".encode()
    async with serving(reads=False) as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(20):
            writer.write(head + b"x" * num_bytes)
            assert await answer(reader) == digest(b"")
        writer.close()


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n", b"content-length: 9\r\n"])
async def test_a_connection_that_has_ended_is_no_garbage(more: bytes) -> None:
    async with serving(reads=False) as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(POST + more + b"\r\n")
        assert await answer(reader) == digest(b"")
        connections = server.http.server_state.connections
        (served,) = [weakref.ref(each) for each in connections] or [lambda: None]
        gc.disable()
        try:
            writer.close()
            while connections or served() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        finally:
            gc.enable()


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_leaves_with_much_unparsed_leaves_nothing(reads: bool) -> None:
    async with serving(reads=reads) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET * 10_000)
        await asyncio.sleep(0)
        writer.transport.abort()
        server.waits.set()
        other, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        assert await answer(other) == digest(b"")
        writer.close()


@pytest.mark.parametrize("num_bytes", [10, 20_000, 70_000, 300_000, 5_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("behind", [b"", GET * 6])
async def test_a_client_that_leaves_is_noticed(
    num_bytes: int, is_chunked: bool, behind: bytes
) -> None:
    body, left = b"x" * num_bytes, asyncio.Event()

    async def answer_never(scope: Scope, receive: Receive, _send: Send) -> None:
        assert len(await Request(scope, receive).body()) == num_bytes
        pipe = BodyPipe.of(scope)
        assert pipe is not None
        pipe.on_loss(left.set)
        read.set()
        await left.wait()

    read, listener = asyncio.Event(), listen("127.0.0.1", 0)
    async with http_server(answer_never, listener), asyncio.timeout(30):
        _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        if is_chunked:
            writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (num_bytes, body) + behind)
        else:
            head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {num_bytes}\r\n\r\n"
            writer.write(head.encode() + body + behind)
        await read.wait()
        writer.close()
        await left.wait()


@pytest.mark.parametrize("is_in_one", [False, True])
async def test_an_upgrade_is_not_made_and_the_body_is_read(is_in_one: bool) -> None:
    head = (
        b"POST / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: x\r\n"
        b"HTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(GET)
    )
    async with serving() as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + GET if is_in_one else head)
        if not is_in_one:
            await writer.drain()
            writer.write(GET)
        writer.write(GET)
        assert await answer(reader) == digest(GET)
        assert await answer(reader) == digest(b"")
        writer.close()
    assert len(server.headers) == 2


@pytest.mark.parametrize("bad", [b"GET http://[x/", b"GET http://x:999999/", b"CONNECT x:1"])
async def test_a_bad_request_behind_a_good_one_is_answered(bad: bytes) -> None:
    async with serving() as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        assert await answer(reader) == digest(b"")
        writer.write(bad + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_ends_of_heads_within_chunks_do_not_cut_them_small(parsed: Counter[str]) -> None:
    body = b"\r\n\r\n" * 100_000
    async with serving() as server:
        server.waits.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert await answer(reader) == digest(body)
        writer.close()
    assert parsed["all"] < len(body) / 250
