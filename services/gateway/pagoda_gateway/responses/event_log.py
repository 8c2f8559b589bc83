"""The events of a response in the background, for those who read them, late or again."""

import asyncio
import base64
import zlib
from collections import deque
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any

from pagoda_gateway import sse
from pagoda_gateway.errors import InvalidRequestError

MAX_BYTES = 8 << 20  # of one response; beyond, its oldest events are forgotten
_END = b"\n\n"  # of an event; JSON has no line breaks


class EventLog:
    """Server-sent events in the order of their numbers, from 0; none is read twice or left out.

    Its response writes, on the event loop; whoever reads waits for nobody else.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._first = 0  # number of the first that is there
        self._num_bytes = 0
        self._last: bytes | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    def append(self, event: bytes) -> None:
        """Add the next event."""
        self._events.append(event)
        self._num_bytes += len(event)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._events.popleft())
            self._first += 1
        self._note()

    def end(self, event: bytes) -> None:
        """Add the event that says how the response has ended. `packed` does without it."""
        self._last = event
        self.close()

    def close(self) -> None:
        """Let those who read end: nothing more comes. Idempotent."""
        self._is_closed = True
        self._note()

    @property
    def has_ended(self) -> bool:
        """Whether it has the event that says how the response has ended."""
        return self._last is not None

    async def read(self, after: int, *, keepalive_seconds: float) -> AsyncIterator[bytes]:
        """Yield events whose number is above `after`, until the log is closed.

        Those that were forgotten before they were read end it, as a connection that breaks.
        """
        number = after + 1
        while True:
            changed = self._changed
            there = self._first + len(self._events)
            if number < self._first:
                return
            if number < there:
                yield b"".join(self._from(number))
                number = there
            elif self._is_closed:
                if self._last is not None and number == there:
                    yield self._last
                return
            else:
                try:
                    async with asyncio.timeout(keepalive_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield sse.comment("keepalive")

    def check(self, after: int) -> None:
        """See that `read` finds what it should.

        Raises:
            InvalidRequestError: events after this one are forgotten.
        """
        _check(after, self._first)

    @cached_property
    def packed(self) -> dict[str, Any]:
        """Return what `KeptEvents` reads, as JSON has it. Any thread, once nothing is added."""
        data = zlib.compress(b"".join(self._events), 1)
        return {"first": self._first, "data": base64.b64encode(data).decode()}

    def _from(self, number: int) -> list[bytes]:
        # By index: a deque is quick at both ends, and a reader lacks the last ones mostly.
        return [self._events[i] for i in range(number - self._first, len(self._events))]

    def _note(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class KeptEvents:
    """The events of a log as they were kept, without the one that says how it ended."""

    def __init__(self, packed: dict[str, Any] | None) -> None:
        """Read what `EventLog.packed` returned; None: nothing was kept."""
        self._first, self._events = 0, list[bytes]()
        if packed is not None:
            self._first = packed["first"]
            data = zlib.decompress(base64.b64decode(packed["data"]))
            self._events = [event + _END for event in data.split(_END)[:-1]]

    @property
    def num_events(self) -> int:
        """How many the response had: the number of the one that is not there."""
        return self._first + len(self._events)

    def after(self, number: int) -> bytes:
        """Return those whose number is above `number`.

        Raises:
            InvalidRequestError: see `EventLog.check`.
        """
        _check(number, self._first)
        return b"".join(self._events[max(0, number + 1 - self._first) :])


def _check(after: int, first: int) -> None:
    if after + 1 < first:
        raise InvalidRequestError(
            f"its events up to {first - 1} are kept no longer ({MAX_BYTES} bytes are): ask without "
            f"'stream', or with 'starting_after' from {first - 1} on",
            param="starting_after",
        )
