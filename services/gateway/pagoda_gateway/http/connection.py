"""One HTTP connection with limits: on its head, on silence, on a reader that does not read.

uvicorn limits none of these with httptools. Knows HTTP's framing and no routes.
"""

import asyncio
import math
import re
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, ClassVar
from weakref import WeakMethod

import orjson
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pagoda_gateway import metrics
from pagoda_gateway.errors import GatewayError, InvalidRequestError, UnavailableError
from pagoda_gateway.http.body_pipe import BodyPipe, end_with_connection, tell_loss
from pagoda_gateway.http.body_reader import (
    LAST_LOOK_SECONDS,
    MAX_DISCARDED_BYTES,
    MIN_BYTES_PER_SECOND,
)
from pagoda_gateway.http.joined_head import JoinedHead
from pagoda_gateway.http.paced_connection import MAX_SILENT_BYTES, PacedConnection
from pagoda_runtime.identity import new_request_id

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
HEAD_SECONDS = 10.0  # from a connection or a request's first byte to its last header
REST_SECONDS = 10.0  # in so long some of a body must come that was answered early
READ_SECONDS = 10.0  # in so long a client must read ...
MIN_READ_BYTES = 10_240  # ... so much of what waits for it
MIN_WAIT_SECONDS = 1.0  # without a request, before a connection is closed for a new one
LEAVE_SECONDS = 1.0  # from a refusal to the end of its connection

_HOST = re.compile(rb"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)  # RFC 3986, 3.2.2 and 3.2.3
_Refusal = tuple[HTTPStatus, GatewayError]
_INVALID = (
    HTTPStatus.BAD_REQUEST,
    InvalidRequestError(
        "this is no HTTP/1.1 request, does not have one Host, or its body is not framed as it says"
    ),
)
_ENCODED = (
    HTTPStatus.NOT_IMPLEMENTED,
    InvalidRequestError(
        "'transfer-encoding' is more than chunked; send the body as it is, in chunks or with its "
        "content-length"
    ),
)
_TOO_LARGE = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    InvalidRequestError(
        f"the head of the request is too large: {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers "
        "at most"
    ),
)
_SILENT = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    InvalidRequestError(
        "what the request sends within its body, but not as a part of it (trailers, extensions of "
        f"chunks), is too large: {MAX_SILENT_BYTES} bytes at most"
    ),
)
_TOO_MANY = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    UnavailableError(
        "this server has as many connections as it may, and all are in use; try again",
        retry_after_seconds=1.0,
    ),
)


def _answer(status: HTTPStatus, error: GatewayError) -> bytes:
    """Return the answer to what no route will see. The connection ends."""
    body, request_id = orjson.dumps(error.body()), new_request_id()
    headers = {
        "content-type": "application/json",
        "x-request-id": request_id,
        "x-pagoda-request-id": request_id,
        "content-length": str(len(body)),
        "connection": "close",
        **error.headers(),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {status.phrase}\r\n{lines}\r\n".encode() + body


class LimitedConnection(PacedConnection):
    """Closes what sends its head too slowly, what is silent, and what does not read.

    Made by `limited_connections`.

    Attributes:
        max_connections: one more closes whichever has waited longest without a request, if that is
            for MIN_WAIT_SECONDS; else it is refused.
        waiting: connections of the same server without a request, the longest first, and since
            when, by the event loop's clock.
        leaving: those that were refused, and have LEAVE_SECONDS to send their request and read the
            answer. They are beyond the limit.
        max_leaving: one more is closed with its answer, which a client that sends then may lose.
        is_ending: no connection carries another request than the one it has, or that comes next.
    """

    max_connections: ClassVar[int]
    max_leaving: ClassVar[int]
    waiting: ClassVar[OrderedDict["LimitedConnection", float]]
    leaving: ClassVar[set["LimitedConnection"]]
    is_ending: ClassVar[bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None  # or of a body's rest
        self._read_timer: asyncio.TimerHandle | None = None
        self._num_head_bytes = 0
        self._bad_head: _Refusal = _INVALID
        self._weak_close = WeakMethod(self._close)  # cycles may live on: this is no part of them
        self._current: RequestResponseCycle | None = None  # others wait in the pipeline behind it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close another one if there are too many, or refuse this one; wait for a head."""
        super().connection_made(transport)
        if len(self.connections) <= self.max_connections or self._close_oldest():
            self._wait_for_head()
        else:
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers; tell whoever answers."""
        self.leaving.discard(self)
        self._stop_waiting()
        self._stop_read_timer()
        super().connection_lost(exc)
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True  # uvicorn tells the last request in the pipeline
            self._current.message_event.set()
            tell_loss(self._current)

    def parse(self, data: bytes) -> None:
        """Watch the head, and the rest of a body that was answered early."""
        was_in_body = self._is_in_body
        self._num_head_bytes += len(data)
        super().parse(data)
        if self.is_deaf:  # it was refused
            return
        if self._is_idle:  # uvicorn's own timer ended with the first byte
            self._wait_on(was_in_body)
        if self._is_in_head and (
            self._num_head_bytes > MAX_HEAD_BYTES or len(self.headers or ()) > MAX_HEADERS
        ):
            self._refuse(_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """A request is there: nothing is waited for. End the parser at a bad head."""
        if len(self.headers) > MAX_HEADERS:
            raise ValueError(f"more than {MAX_HEADERS} headers")
        hosts, encodings = [], []
        for name, value in self.headers:
            if name == b"host":
                hosts.append(value.strip())
            elif name == b"transfer-encoding":
                encodings.append(value.strip().lower())
        if len(hosts) > 1 or not (hosts or self.parser.get_http_version() == "1.0"):
            raise ValueError("no Host, or several")
        if hosts and not _HOST.fullmatch(hosts[0]):
            raise ValueError("what is in Host is none")
        if encodings not in ([], [b"chunked"]):
            self._bad_head = _ENCODED
            raise ValueError("an encoding of transfers that is not known")
        self._num_head_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()
        if not self.pipeline:
            self._current = self.cycle
        if self.scope["http_version"] == "1.0":
            end_with_connection(self.cycle)
        BodyPipe(self.cycle, self.transport).enter(self.scope)  # type: ignore[arg-type]
        JoinedHead.enter(self.cycle, self._weak_close)

    def on_message_complete(self) -> None:
        """What comes next is another head."""
        super().on_message_complete()
        self._num_head_bytes = 0
        # A trailer can say that it was the last, too: the parser takes no other.
        if self.is_ending or not self.parser.should_keep_alive():
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there."""
        if self.pipeline:
            self._current = self.pipeline[-1][0]
        super().on_response_complete()
        if not self._is_idle:
            return
        self._wait()
        if self._is_in_body:
            self._unset_keepalive_if_required()
            is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
            if is_chunked or self.is_ending or not self.cycle.keep_alive:
                self._end_this_side()
            elif self._head_timer is None:
                self._watch_rest()

    def end_reuse(self) -> None:
        """End with the answer that is on its way, or now, unless a request may just have been sent.

        That one is the last then. What is left of a body that was answered is read on.
        """
        latest = self.loop.time() - MIN_WAIT_SECONDS
        if not self._is_idle:
            self.shutdown()  # once that is over
        elif self._is_in_body:
            self._end_this_side()
        elif self.waiting.get(self, math.inf) <= latest:
            self.transport.close()

    def on_silent_body(self) -> None:
        """Say that it was too much."""
        self._refuse(_SILENT)

    def pause_writing(self) -> None:
        """More waits for this client than is good: watch it read."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._stop_read_timer()

    def send_400_response(self, msg: str) -> None:
        """Say what it was, where that is known, in the API's own form."""
        self._refuse(_TOO_LARGE if len(self.headers or ()) > MAX_HEADERS else self._bad_head)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _close(self) -> None:
        """Close behind an answer, unless it came early: `on_response_complete` reads on then.

        A connection that is closed while its client sends ends with a reset, by which many clients
        lose an answer that they have not read.
        """
        if not (self._is_idle and self._is_in_body):
            self.transport.close()

    def _refuse(self, reason: _Refusal) -> None:
        """Answer and end; within another answer's bytes nothing can be said."""
        metrics.RESPONSES.labels("unknown", str(int(reason[0]))).inc()
        current = self._current
        # One that is complete was the last request's, unless this is still that one's body.
        has_begun = (
            current is not None
            and current.response_started
            and (self._is_in_body or not current.response_complete)
        )
        if not has_begun:
            self.transport.write(_answer(*reason))
        if has_begun or not self._is_idle:
            self.transport.close()
        else:
            self._wait()
            self._end_this_side()

    def _close_oldest(self) -> bool:
        """Close the one that waits longest; not if its request or its answer is on its way."""
        latest = self.loop.time() - MIN_WAIT_SECONDS
        for waiting, since in self.waiting.items():
            if since > latest:
                break
            if not waiting.transport.get_write_buffer_size():
                del self.waiting[waiting]
                waiting.transport.abort()
                metrics.CONNECTIONS_OVER_LIMIT.labels("closed").inc()
                return True
        return False

    def _turn_away(self) -> None:
        """Answer before there is a request, which is then not read but dropped.

        Were the connection closed before that came, its end would be a reset.
        """
        metrics.CONNECTIONS_OVER_LIMIT.labels("refused").inc()
        self.connections.discard(self)  # it has no place among them
        self.leaving.add(self)
        self.is_deaf = True
        self.transport.write(_answer(*_TOO_MANY))
        if len(self.leaving) > self.max_leaving:
            self.transport.close()
            return
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(LEAVE_SECONDS, self.transport.abort)

    def _end_this_side(self) -> None:
        """Drop the rest of what was answered early: to find its end costs more than to read.

        The client can send on, has its answer, and sees that this side of the connection has ended.
        """
        self.is_deaf = True
        self._drop_rest()
        self._unset_keepalive_if_required()
        self.loop.call_soon(self._end_writing)  # behind an answer's head that waits for its body
        if self._head_timer is None:
            self._watch_rest()

    def _end_writing(self) -> None:
        if not self.transport.is_closing():
            self.transport.write_eof()

    def _wait(self) -> None:
        """Be the last of those that wait."""
        self.waiting[self] = self.loop.time()
        self.waiting.move_to_end(self)

    def _wait_on(self, was_in_body: bool) -> None:
        """Wait for what comes behind these bytes: nothing is to be answered yet."""
        if was_in_body and not self._is_in_body:  # it ended with the slice, so no head has begun
            self._stop_waiting()
            self._wait()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self._head_timer is None:
            if self._is_in_body:
                self._wait()
                self._watch_rest()
            else:
                self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._wait()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """Read what has come while this process stood still, if it did, before giving up."""
        self._head_timer = self.loop.call_later(LAST_LOOK_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_rest(self) -> None:
        """Have a body that was answered early come as fast as others must, and not for ever."""
        self._check_later(self.loop.time(), self._num_received, 0)

    def _check_later(self, began: float, num_before: int, num_last: int) -> None:
        self._head_timer = self.loop.call_later(
            REST_SECONDS, self._check_rest, began, num_before, num_last
        )

    def _check_rest(self, began: float, num_before: int, num_last: int) -> None:
        num_bytes = self._num_received - num_before
        seconds = REST_SECONDS + num_bytes / MIN_BYTES_PER_SECOND
        is_late = self.loop.time() >= began + seconds
        if num_bytes == num_last or num_bytes > MAX_DISCARDED_BYTES or is_late:
            self.transport.abort()
        else:
            self._check_later(began, num_before, num_bytes)

    def _watch_reader(self) -> None:
        self._stop_read_timer()
        size = self.transport.get_write_buffer_size()

        def check() -> None:
            if size - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
                self.transport.abort()
            else:
                self._watch_reader()

        self._read_timer = self.loop.call_later(READ_SECONDS, check)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


def limited_connections(max_connections: int, max_leaving: int) -> type[LimitedConnection]:
    """Return the protocol of one server, for uvicorn."""
    return type(
        "Connection",
        (LimitedConnection,),
        {
            "max_connections": max_connections,
            "max_leaving": max_leaving,
            "waiting": OrderedDict(),
            "leaving": set(),
            "is_ending": False,
        },
    )
