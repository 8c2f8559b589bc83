"""The way of an event stream's middle: from its writer straight into the connection.

Each ASGI message passes every middleware, and waiting for one more token takes a task's step; for
an event of one token that costs more than the token. Head and end of a stream go by ASGI still.
Knows uvicorn's cycle.
"""

import asyncio
from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_SCOPE_NAME = "pagoda.body_pipe"
_CHUNK_HEADS = [b"%x\r\n" % size for size in range(1024)]  # of nearly all chunks


class BodyPipe:
    """Writes the body of one answer of unknown length, after its head and before its end."""

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport

    @classmethod
    def of(cls, scope: Scope) -> "BodyPipe | None":
        """Return the pipe of a request, once; None where the server is another one."""
        pipe: BodyPipe | None = scope.pop(_SCOPE_NAME, None)  # its cycle has the scope
        return pipe

    def enter(self, scope: Scope) -> None:
        """Make the pipe known to the request's route."""
        scope[_SCOPE_NAME] = self

    def on_loss(self, callback: Callable[[], None] | None) -> None:
        """Call back when the client is gone, now if it is; None: no more.

        A task that waits for ASGI's message costs a request more, at its begin and at its end.
        """
        if callback is not None and self._cycle.disconnected:
            callback()
        else:
            self._cycle.on_loss = callback  # type: ignore[attr-defined]

    @property
    def is_open(self) -> bool:
        """Whether something can be written now: the client is there and reads."""
        cycle = self._cycle
        return not (cycle.disconnected or cycle.response_complete or cycle.flow.write_paused)

    @property
    def has_whole_request(self) -> bool:
        """Whether the request's body, not read yet, is all there."""
        cycle = self._cycle
        return not (cycle.more_body or cycle.disconnected or cycle.response_complete)

    def write(self, body: bytes) -> None:
        """Write a part of the body, not empty; the pipe is open."""
        if self._cycle.chunked_encoding:
            size = len(body)
            head = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size
            body = b"".join((head, body, b"\r\n"))
        self._transport.write(body)


def tell_loss(cycle: RequestResponseCycle) -> None:
    """Call whoever waits for the end of the connection that `cycle` answers by."""
    callback: Callable[[], None] | None = getattr(cycle, "on_loss", None)
    if callback is not None:
        callback()


def has_whole_body(scope: Scope) -> bool:
    """Tell whether all of a request's body has come, so that nobody waits for it."""
    pipe: BodyPipe | None = scope.get(_SCOPE_NAME)
    return pipe is not None and pipe.has_whole_request


class _UntilClose(int):
    """The length of a body that ends with its connection: whatever comes is expected."""

    def __lt__(self, _num_bytes: int) -> bool:
        return False

    def __sub__(self, _num_bytes: int) -> "_UntilClose":
        return self


def end_with_connection(cycle: RequestResponseCycle) -> None:
    """Send no chunks: HTTP/1.0 has none. Such a cycle closes its connection at the end."""
    cycle.chunked_encoding = False
    cycle.expected_content_length = _UntilClose()  # 0
