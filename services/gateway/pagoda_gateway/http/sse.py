"""Server-sent events, as bytes."""

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
CONTENT_TYPE = b"text/event-stream; charset=utf-8"


def event(payload: dict[str, Any]) -> bytes:
    """Return one data event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def keepalive(stage: str) -> bytes:
    """Return a comment: clients ignore it, proxies see that the connection lives."""
    return b": keep-alive " + stage.encode() + b"\n\n"
