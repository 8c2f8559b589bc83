"""An answer's head and the first part of its body in one write. Knows uvicorn's cycle.

Each write is a packet, and wakes the client: the head alone tells it nothing that it can use.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakMethod

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_INTERIM = b"HTTP/1.1 100 "  # who waits for it has a body to send; the answer's head comes later


class JoinedHead:
    """The connection's transport, as one cycle writes to it."""

    def __init__(self, transport: asyncio.Transport, close: WeakMethod[Callable[[], None]]) -> None:
        self._transport, self._close = transport, close
        self._head: bytes | None = None
        self._is_first = True

    @classmethod
    def enter(cls, cycle: RequestResponseCycle, close: WeakMethod[Callable[[], None]]) -> None:
        """Have a cycle that has written nothing yet write by this, and end by `close`, if it is."""
        cycle.transport = cls(cycle.transport, close)  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        """Write; what comes first waits for what comes next, until the event loop's next turn."""
        if self._is_first and not data.startswith(_INTERIM):
            self._is_first, self._head = False, data
            asyncio.get_running_loop().call_soon(self._write_head)
            return
        if self._head is not None:
            data, self._head = self._head + data, None
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Tell whether the connection is closing."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Have the connection end behind what was written."""
        self._write_head()
        if (close := self._close()) is not None:
            close()

    def _write_head(self) -> None:
        if self._head is not None:
            data, self._head = self._head, None
            self._transport.write(data)
