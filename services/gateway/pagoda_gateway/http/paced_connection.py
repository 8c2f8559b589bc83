"""One HTTP connection whose bytes are parsed a little at a time.

uvicorn parses all that a read has brought, a quarter of a megabyte: thousands of requests that then
wait behind one another, or as many chunks of a byte each, while nobody else has a turn. It reads on
after each answer, however many requests wait, and takes fields behind a body for the head's. Knows
HTTP's framing and no routes.
"""

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SLICE_BYTES = 4096  # of heads and of chunks; it ends with the first head that ends in it
BODY_SLICE_BYTES = 65_536  # of a body whose length is known, which is one piece then
SLICES_A_TURN = 4
MAX_PIPELINED = 2  # requests behind the one that is answered; with more no slice is parsed
HELD_BYTES = 65_536  # unparsed; with more nothing is read, and so no end of the connection seen
MAX_SILENT_BYTES = 65_536  # within a body without any of its data: trailers, or words about chunks
_HEAD_END = b"\r\n\r\n"
_CHUNKS_BYTES = 512  # of chunks at least, in which there may be many ends of heads
# A server may go on without an upgrade, which some clients ask for with each request. The parser
# may not: behind such a head it finds no body, and takes it for the next request.
_UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
_NO_UPGRADE = b"\r\nx-upgrd"


class _Flow(FlowControl):
    """Does not read on while something is there that was not parsed yet.

    Attributes:
        is_held: something is there.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_held = False

    def resume_reading(self) -> None:
        """Read on, unless it is held."""
        if not self.is_held:
            super().resume_reading()


class PacedConnection(HttpToolsProtocol):
    """Parses some slices each turn of the event loop, and none while many requests wait.

    Attributes:
        is_deaf: whatever comes is dropped.
    """

    flow: _Flow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_deaf = False
        self._num_received = 0  # bytes, with those that are dropped
        self._unparsed = b""
        self._num_parsed = 0  # of that
        self._is_scheduled = False
        self._is_in_head = True
        self._is_in_body = False
        self._num_left: int | None = None  # of the body; None: its length is not known
        self._has_data = False  # of a body, in this slice
        self._num_silent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Have uvicorn's flow control know what is held."""
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Parse nothing more."""
        self._drop_rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the beginning now; nearly always that is all."""
        self._num_received += len(data)
        if self.is_deaf:
            return
        self._unparsed = self._unparsed[self._num_parsed :] + data if self._unparsed else data
        self._num_parsed = 0
        if not self._is_scheduled:
            self._parse()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head. What comes behind a body, nobody asked for."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A body begins, which may be empty."""
        if self.parser.should_upgrade():
            raise ValueError("a tunnel, or an upgrade whose name was cut in two")
        super().on_headers_complete()
        self._is_in_head, self._is_in_body = False, True
        lengths = (int(value) for name, value in self.headers if name == b"content-length")
        self._num_left = next(lengths, None)

    def on_body(self, body: bytes) -> None:
        """Take data of a body."""
        self._has_data = True
        if self._num_left is not None:
            self._num_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body has ended."""
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """There is room for one more request."""
        super().on_response_complete()
        if self._has_rest:
            self._schedule()

    def parse(self, data: bytes) -> None:
        """Parse a slice."""
        super().data_received(data)

    def on_silent_body(self) -> None:
        """End a connection that sends much within a body, but none of its data."""
        self.transport.close()

    @property
    def _may_parse(self) -> bool:
        is_there = self.parser is not None and not self.transport.is_closing()
        return is_there and len(self.pipeline) < MAX_PIPELINED

    @property
    def _has_rest(self) -> bool:
        return self._num_parsed < len(self._unparsed)

    def _parse(self) -> None:
        self._is_scheduled = False
        for _ in range(SLICES_A_TURN):
            if not self._has_rest or not self._may_parse:
                break
            begin, self._num_parsed = self._num_parsed, self._slice_end()
            self._parse_slice(self._unparsed[begin : self._num_parsed])
        if self.parser is None or self.transport.is_closing():
            self._unparsed, self._num_parsed = b"", 0
            return
        if not self._has_rest:
            self._unparsed, self._num_parsed = b"", 0
        elif self._may_parse:
            self._schedule()
        self._read_or_not()

    def _read_or_not(self) -> None:
        """Read on, unless much waits: to be parsed, or for somebody to take it of a body."""
        self.flow.is_held = len(self._unparsed) - self._num_parsed >= HELD_BYTES
        is_awaited = self._is_in_body and not self.cycle.response_complete
        if self.flow.is_held:
            self.flow.pause_reading()
        elif not (is_awaited and len(self.cycle.body) > HIGH_WATER_LIMIT):
            self.flow.resume_reading()

    def _slice_end(self) -> int:
        begin = self._num_parsed
        if self._is_in_body and self._num_left:
            return begin + min(self._num_left, BODY_SLICE_BYTES)
        least = _CHUNKS_BYTES if self._is_in_body else 0
        end = self._unparsed.find(_HEAD_END, begin + least, begin + SLICE_BYTES)
        return end + len(_HEAD_END) if end >= 0 else begin + SLICE_BYTES

    def _parse_slice(self, data: bytes) -> None:
        was_in_body, self._has_data = self._is_in_body, False
        if not was_in_body:
            data = _UPGRADE.sub(_NO_UPGRADE, data)
        self.parse(data)
        if not (was_in_body and self._is_in_body) or self._has_data:
            self._num_silent_bytes = 0
            return
        self._num_silent_bytes += len(data)
        if self._num_silent_bytes > MAX_SILENT_BYTES:
            self.on_silent_body()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._parse)

    def _drop_rest(self) -> None:
        """Have nothing unparsed, and read on: what comes is dropped as well."""
        self._unparsed, self._num_parsed = b"", 0
        self.flow.is_held = False
        if not self.transport.is_closing():
            self.flow.resume_reading()
