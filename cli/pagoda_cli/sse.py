"""OpenAI's streams: server-sent events up to `[DONE]`, each a JSON object.

Knows the wire form only; what an object means is the caller's business. Our own, because
`pagoda bench` reads thousands of events a second and takes the time of each: httpx-sse decodes
line by line and the openai client makes a checked model of each event.
"""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseError(Exception):
    """The stream is not a server-sent event stream that we are willing to read."""


class CutStreamError(Exception):
    """The stream ended before its [DONE]."""


async def read_chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield each object of the stream as soon as it is there.

    Raises:
        CutStreamError: the stream ended without [DONE].
        SseError: it is no stream that we are willing to read.
        ValueError: an event is not JSON.
    """
    parser, is_done = SseParser(), False
    async for data in response.content.iter_any():
        for payload in parser.feed(data):
            if payload == b"[DONE]":
                is_done = True
            else:
                yield orjson.loads(payload)
    if not is_done:
        raise CutStreamError("the stream ended without [DONE]")


class SseParser:
    """Splits a byte stream into events; drops comments (keep-alives) and fields other than data.

    Lines may end in LF or CRLF (not in CR alone, which nobody sends); bytes may be cut anywhere.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data payloads of the events that `data` completes.

        Raises:
            SseError: an event is longer than MAX_EVENT_BYTES.
        """
        if b"\r" in data:
            data = data.replace(b"\r", b"")
        rest = self._rest + data if self._rest else data
        *events, self._rest = rest.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise SseError(
                f"an event of more than {len(self._rest)} bytes has not ended; "
                f"the limit is {MAX_EVENT_BYTES}"
            )
        payloads = []
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                payloads.append(event[6:])
            elif (payload := _payload(event)) is not None:
                payloads.append(payload)
        return payloads


def _payload(event: bytes) -> bytes | None:
    """Return the joined data lines of one event, None if it has none."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None
