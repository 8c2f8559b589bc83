"""Answers as they go over the wire: JSON, errors, server-sent events."""

from typing import Any

import orjson
from starlette.types import Send

from pagoda_gateway.errors import GatewayError

EVENT_STREAM = "text/event-stream"
EVENT_STREAM_HEADERS = [
    (b"content-type", f"{EVENT_STREAM}; charset=utf-8".encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies such as nginx pass events on at once
]
DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any]) -> bytes:
    """Return one data event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def keepalive(stage: str) -> bytes:
    """Return a comment: clients ignore it, proxies see that the connection lives."""
    return b": keep-alive " + stage.encode() + b"\n\n"


async def send_json(
    send: Send, status: int, payload: object, headers: dict[str, str] | None = None
) -> None:
    """Send a whole JSON answer."""
    body = orjson.dumps(payload)
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: GatewayError) -> None:
    """Send an error as the whole answer."""
    await send_json(send, error.status, error.body(), error.headers())
