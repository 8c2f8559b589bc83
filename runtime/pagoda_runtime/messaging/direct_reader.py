"""Whole messages of a NATS connection, handed on in the turn in which their bytes arrive.

nats-py wakes a task for what has arrived: one more turn of the event loop before anybody hears of
it. What is for a listener, without headers and whole, goes without; the task reads all else. Knows
the insides of asyncio's `StreamReader` and of nats-py's parser.
"""

import asyncio
import re
from collections.abc import Callable, Container

from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

_HEAD = re.compile(rb"MSG +([^ \r\n]+) +(\d+)(?: +([^ \r\n]+))? +(\d+)\r\n")
_END_BYTES = 2  # behind a payload

OnPayload = Callable[[int, bytes, bytes, bytes], None]
"""(subscription, subject, where an answer goes or nothing, payload); raises nothing."""


def read_directly(
    reader: asyncio.StreamReader, parser: Parser, listeners: Container[int], on_payload: OnPayload
) -> None:
    """Have what `reader` is fed looked at first, from now on.

    Args:
        reader: of a connection, whose task feeds `parser`.
        parser: while it has nothing, and the reader has nothing, nothing can be overtaken.
        listeners: subscriptions whose messages are handed on.
        on_payload: hears of them, in order.
    """
    feed = reader.feed_data
    waiting: bytearray = reader._buffer  # type: ignore[attr-defined]

    def feed_data(data: bytes) -> None:
        start = 0
        if not waiting and not parser.buf and parser.state == AWAITING_CONTROL_LINE:
            start = _take_messages(data, listeners, on_payload)
        if start < len(data):
            feed(data[start:] if start else data)

    reader.feed_data = feed_data  # type: ignore[method-assign, assignment]


def _take_messages(data: bytes, listeners: Container[int], on_payload: OnPayload) -> int:
    """Hand on the messages that `data` begins with; return how many bytes they take."""
    start = 0
    while (head := _HEAD.match(data, start)) is not None:
        subscription, body, end = int(head[2]), head.end(), head.end() + int(head[4])
        if subscription not in listeners or end + _END_BYTES > len(data):
            break
        start = end + _END_BYTES
        on_payload(subscription, head[1], head[3] or b"", data[body:end])
    return start
