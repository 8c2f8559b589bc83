"""An answer's head goes with what follows it at once, and alone where nothing does."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast
from weakref import WeakMethod

import pytest_asyncio

from pagoda_gateway.http.joined_head import JoinedHead

HEAD, BODY = b"HTTP/1.1 200 OK\r\n\r\n", b"body"


class Reader(asyncio.Protocol):
    """The other end."""

    def __init__(self) -> None:
        self.received = b""
        self.is_closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed.set()


class Connection:
    """A connection of this process to itself, and what was written to it, each write apart."""

    def __init__(self, transport: asyncio.Transport, reader: Reader) -> None:
        self.transport = transport
        self.reader = reader
        self.writes: list[bytes] = []
        self.head = JoinedHead(cast(asyncio.Transport, self), WeakMethod(self.close))

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def is_closing(self) -> bool:
        return self.transport.is_closing()


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[Connection]:
    loop, reader = asyncio.get_running_loop(), Reader()
    server = await loop.create_server(lambda: reader, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    yield Connection(transport, reader)
    transport.close()
    server.close()
    await server.wait_closed()


async def test_head_and_first_part_are_one_write(connection: Connection) -> None:
    connection.head.write(HEAD)
    connection.head.write(BODY)
    connection.head.write(b"more")
    await asyncio.sleep(0)

    assert connection.writes == [HEAD + BODY, b"more"]


async def test_a_head_alone_waits_for_one_turn(connection: Connection) -> None:
    connection.head.write(HEAD)
    assert connection.writes == []

    await asyncio.sleep(0)
    assert connection.writes == [HEAD]

    connection.head.write(BODY)
    assert connection.writes == [HEAD, BODY]


async def test_a_client_hears_at_once_that_it_may_send(connection: Connection) -> None:
    connection.head.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert len(connection.writes) == 1

    connection.head.write(HEAD)
    connection.head.write(BODY)
    assert connection.writes[1:] == [HEAD + BODY]


async def test_close_loses_nothing(connection: Connection) -> None:
    connection.head.write(HEAD)
    connection.head.close()

    assert connection.head.is_closing()
    async with asyncio.timeout(60):
        await connection.reader.is_closed.wait()
    assert connection.reader.received == HEAD
