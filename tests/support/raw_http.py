"""HTTP as bytes on a socket: what clients do that no HTTP library does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import orjson

RECEIVE_BYTES = 4096  # of the socket's own buffer, so that a reader who stops is felt at once


class RawConnection:
    """One connection. Requests are written as they are given, answers are read one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return an answer's status and headers."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines if line)

    async def chunk(self) -> bytes:
        """Return one chunk; empty: the last one."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        body = await self.reader.readexactly(size + 2)
        assert body.endswith(b"\r\n"), body
        return body[:-2]

    async def body(self, headers: dict[str, str]) -> bytes:
        """Return an answer's whole body."""
        if (size := headers.get("content-length")) is not None:
            return await self.reader.readexactly(int(size))
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return b"".join(chunks)


@contextlib.asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    """Connect with a small receive buffer; the connection is reset at the end."""
    parts = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=RECEIVE_BYTES)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def post(path: str, key: str, body: Any, *, version: str = "1.1", extra: str = "") -> bytes:
    """Return a request's bytes."""
    content = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/{version}\r\nhost: test\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n{extra}\r\n"
    )
    return head.encode() + content


def events_of(body: bytes) -> list[Any]:
    """Return the data events of an OpenAI stream without `[DONE]`; checks its framing."""
    blocks = body.decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], blocks[-3:]
    kept = [block for block in blocks[:-2] if not block.startswith(":")]
    assert all(block.startswith("data: ") for block in kept)
    return [orjson.loads(block[6:]) for block in kept]
