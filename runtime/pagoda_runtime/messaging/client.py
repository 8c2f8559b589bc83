"""nats-py's client with a shorter way out and in.

nats-py sends by a task that each message wakes, and hands on by a queue and a task of each
subscription. What is sent or heard for every token goes without either. Knows the client's insides,
of the version that constraints.txt names; `tests/integration/runtime/messaging` would notice.
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

from pagoda_runtime.tasks.cancellation import cancellation_kept

logger = logging.getLogger(__name__)

MAX_UNWRITTEN_BYTES = 64 << 10  # asyncio's own: above it the flusher waits for the server to read

OnMessage = Callable[[Msg], None]


class DirectClient(Client):
    """Writes in the sender's call what it can; hands messages to functions in the reader's."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: dict[int, OnMessage] = {}
        self._writer: asyncio.WriteTransport | None = None  # of the connection that is up

    def post(self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b"") -> None:
        """Publish at once; while disconnected it waits for the connection.

        Args:
            subject: where to.
            payload: of the message.
            reply: where an answer goes; empty: nobody wants one.
            headers: as `codec.header_block` writes them; empty: none.

        Raises:
            nats.errors.BadSubjectError: the server would not read it as one.
            nats.errors.MaxPayloadError: the server takes no payload of this size.
            nats.errors.OutboundBufferLimitError: too much waits already.
            nats.errors.Error: the connection is closed, or draining.
        """
        size = len(headers) + len(payload)
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        # A subject may have an id in it that came in a message: a line end would be a command.
        if not _is_subject(subject) or (reply and not _is_subject(reply)):
            raise nats.errors.BadSubjectError
        target = f"{subject} {reply}" if reply else subject
        if headers:
            head = f"HPUB {target} {len(headers)} {size}\r\n".encode()
        else:
            head = f"PUB {target} {size}\r\n".encode()
        command = b"".join((head, headers, payload, b"\r\n"))
        if not self._write(command):
            self._queue(command)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size

    def _write(self, command: bytes) -> bool:
        """Write a command, if the connection is up and nothing waits, as nearly always."""
        writer = self._writer
        if (
            writer is None
            or self._status != Client.CONNECTED
            or self._pending
            or writer.get_write_buffer_size() > MAX_UNWRITTEN_BYTES
        ):
            return False
        try:
            writer.write(command)
        except (OSError, RuntimeError):  # it has just been lost: the reader will notice
            return False
        return True

    def _queue(self, command: bytes) -> None:
        """Have a command wait for the connection, or for a server that does not read."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        unwritten = 0 if self._writer is None else self._writer.get_write_buffer_size()
        if self._pending_data_size + unwritten + len(command) > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        self._pending.append(command)
        self._pending_data_size += len(command)
        flushes = self._flush_queue
        if not self._write_pending() and self.is_connected and flushes and flushes.empty():
            flushes.put_nowait(asyncio.get_running_loop().create_future())

    async def request(self, *args: Any, **kwargs: Any) -> Msg:
        """Ask, as the library does, JetStream too; who is cancelled ends, answered or not."""
        with cancellation_kept():
            return await super().request(*args, **kwargs)

    async def listen(self, subject: str, on_message: OnMessage, *, queue: str = "") -> Subscription:
        """Subscribe; `on_message` is called as messages are read, in order, and must be quick."""
        subscription = await self.subscribe(subject, queue=queue, cb=_ignore)
        self._listeners[subscription._id] = on_message
        return subscription

    async def _process_connect_init(self) -> None:
        """Know the event loop's own transport, TLS or not, once there is one."""
        self._writer = None
        await super()._process_connect_init()
        transport = self._transport
        if isinstance(transport, TcpTransport) and transport._io_writer is not None:
            self._writer = transport._io_writer.transport

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Write what waits; leave it to the flusher where the server does not read."""
        if not force_flush and self._write_pending():
            return None
        return await super()._flush_pending(force_flush)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        on_message = self._listeners.get(sid)
        if on_message is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        parsed = await self._process_headers(headers) if headers else None
        try:
            on_message(self._build_message(sid, subject, reply, data, parsed))
        except Exception:  # the reader goes on, whatever a message has caused
            logger.exception("what came on %s was not handled", subject.decode())

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._listeners.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    def _write_pending(self) -> bool:
        """Write what waits, if the connection is up and the server reads."""
        writer = self._writer
        if (
            writer is None
            or not self.is_connected
            or writer.get_write_buffer_size() > MAX_UNWRITTEN_BYTES
        ):
            return False
        if self._pending:
            try:
                writer.writelines(self._pending)
            except (OSError, RuntimeError):  # it has just been lost: the reader will notice
                return False
            self._pending = []
        self._pending_data_size = 0
        return True


def _is_subject(text: str) -> bool:
    """Return whether there is neither white space nor a control character in it."""
    return bool(text) and text.isprintable() and " " not in text


async def _ignore(_: Msg) -> None:
    """Nothing comes here: `DirectClient` takes it before."""
