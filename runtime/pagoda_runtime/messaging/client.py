"""nats-py's client with a shorter way out and in.

nats-py sends by a task that each message wakes, and hands on by a queue and a task of each
subscription, behind a task that reads. What is sent or heard for every token goes without any of
them. Knows the client's insides, of the version that constraints.txt names;
`tests/integration/runtime/messaging` would notice.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from pagoda_runtime.messaging.direct_reader import read_directly

logger = logging.getLogger(__name__)

MAX_UNWRITTEN_BYTES = 64 << 10  # asyncio's own: above it the flusher waits for the server to read

OnMessage = Callable[[Msg], None]


class DirectClient(Client):
    """Writes in the sender's turn; hands messages to plain functions in the turn they arrive in."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: dict[int, OnMessage] = {}

    def post(self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b"") -> None:
        """Publish at once; while disconnected it waits for the connection.

        Args:
            subject: where to.
            payload: of the message.
            reply: where an answer goes; empty: nobody wants one.
            headers: as `codec.header_block` writes them; empty: none.

        Raises:
            nats.errors.MaxPayloadError: the server takes no payload of this size.
            nats.errors.OutboundBufferLimitError: too much waits already.
            nats.errors.Error: the connection is closed, or draining.
        """
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        size = len(headers) + len(payload)
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        if self._pending_data_size + self._unwritten_bytes() + size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        target = f"{subject} {reply}" if reply else subject
        if headers:
            head = f"HPUB {target} {len(headers)} {size}\r\n".encode()
        else:
            head = f"PUB {target} {size}\r\n".encode()
        command = b"".join((head, headers, payload, b"\r\n"))
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size
        self._pending.append(command)
        self._pending_data_size += len(command)
        flushes = self._flush_queue
        if not self._write_pending() and self.is_connected and flushes and flushes.empty():
            flushes.put_nowait(asyncio.get_running_loop().create_future())

    async def listen(self, subject: str, on_message: OnMessage, *, queue: str = "") -> Subscription:
        """Subscribe; `on_message` is called as messages are read, in order, and must be quick."""
        subscription = await self.subscribe(subject, queue=queue, cb=_ignore)
        self._listeners[subscription._id] = on_message
        return subscription

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Write what waits; leave it to the flusher where the server does not read."""
        if not force_flush and self._write_pending():
            return None
        return await super()._flush_pending(force_flush)

    async def _read_loop(self) -> None:
        """Read a connection that is new."""
        transport = self._transport
        if isinstance(transport, TcpTransport) and transport._io_reader is not None:
            read_directly(transport._io_reader, self._ps, self._listeners, self._hand_on)
        await super()._read_loop()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if sid not in self._listeners:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        parsed = await self._process_headers(headers) if headers else None
        self._hand_on(sid, subject, reply, data, parsed)

    def _hand_on(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        data: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            self._listeners[sid](self._build_message(sid, subject, reply, data, headers))
        except Exception:  # the reader goes on, whatever a message has caused
            logger.exception("what came on %s was not handled", subject.decode())

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._listeners.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    def _write_pending(self) -> bool:
        """Write what waits, if the connection is up and the server reads."""
        transport = self._transport
        if (
            not self.is_connected
            or not isinstance(transport, TcpTransport)
            or self._unwritten_bytes() > MAX_UNWRITTEN_BYTES
        ):
            return False
        if self._pending:
            try:
                transport.writelines(self._pending)  # type: ignore[no-untyped-call]
            except (OSError, RuntimeError):  # it has just been lost: the reader will notice
                return False
            self._pending = []
        self._pending_data_size = 0
        return True

    def _unwritten_bytes(self) -> int:
        """Return what the event loop has taken and the server has not."""
        transport = self._transport
        if not isinstance(transport, TcpTransport) or transport._io_writer is None:
            return 0
        size: int = transport._io_writer.transport.get_write_buffer_size()
        return size


async def _ignore(_: Msg) -> None:
    """Nothing comes here: `DirectClient` takes it before."""
