"""Answers as they go over the wire: JSON, errors, heads of event streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import orjson
from starlette.types import Send

from pagoda_gateway import sse
from pagoda_gateway.errors import GatewayError

EVENT_STREAM_HEADERS = [
    (b"content-type", f"{sse.MEDIA_TYPE}; charset=utf-8".encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx pass events on at once
]


async def send_json(
    send: Send, status: int, payload: object, headers: dict[str, str] | None = None
) -> None:
    """Send a whole JSON answer."""
    body = orjson.dumps(payload)
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def send_json_parts(
    send: Send, parts: AsyncIterator[bytes], further_headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole JSON answer; of several parts, each on its own, and others run meanwhile."""
    part, following = await anext(parts), await anext(parts, None)
    headers = [(b"content-type", b"application/json"), *further_headers]
    if following is None:
        headers.append((b"content-length", str(len(part)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while following is not None:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)
        part, following = following, await anext(parts, None)
    await send({"type": "http.response.body", "body": part})


def header_json(payload: object) -> bytes:
    """Return JSON as a header's value: in ASCII."""
    return json.dumps(payload, separators=(",", ":")).encode()


def is_for_now(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether an answer says to ask again.

    503 without Retry-After is for good: the request asked for more than may be held.
    """
    return status in (429, 503) and any(name == b"retry-after" for name, _ in headers)


async def send_error(send: Send, error: GatewayError, body: dict[str, Any]) -> None:
    """Send an error as the whole answer; `body` is its shape in the API."""
    await send_json(send, error.status, body, error.headers())
