"""The way of an event stream's middle: from its writer straight into the connection.

Each ASGI message passes every middleware, and waiting for one more token takes a task's step; for
an event of one token that costs more than the token. Head and end of a stream go by ASGI still.
Knows uvicorn's cycle.
"""

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_SCOPE_NAME = "pagoda.body_pipe"


class BodyPipe:
    """Writes the body of one chunked answer, after its head and before its end."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, scope: Scope) -> "BodyPipe | None":
        """Return the pipe of a request; None where the server is another one."""
        pipe: BodyPipe | None = scope.get(_SCOPE_NAME)
        return pipe

    def enter(self, scope: Scope) -> None:
        """Make the pipe known to the request's route."""
        scope[_SCOPE_NAME] = self

    @property
    def is_open(self) -> bool:
        """Whether something can be written now: the client is there and reads."""
        cycle = self._cycle
        return not (cycle.disconnected or cycle.response_complete or cycle.flow.write_paused)

    def write(self, body: bytes) -> None:
        """Write one chunk, not empty; the pipe is open."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
