"""Server-sent events as bytes. Knows no API's events."""

from typing import Any

import orjson

MEDIA_TYPE = "text/event-stream"
DONE_DATA = "[DONE]"
DONE = f"data: {DONE_DATA}\n\n".encode()  # ends a stream of OpenAI's choices


def data(payload: dict[str, Any]) -> bytes:
    """Return an event without a name."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named(payload: dict[str, Any]) -> bytes:
    """Return an event that is named by its payload's `type`."""
    name: str = payload["type"]
    return b"event: " + name.encode() + b"\n" + data(payload)


def comment(text: str) -> bytes:
    """Return what clients ignore, and proxies see as life."""
    return b": " + text.encode() + b"\n\n"
