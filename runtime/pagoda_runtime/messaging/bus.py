"""One NATS connection: messages, requests, subscriptions, and JetStream behind `streams`.

Payloads are protobuf messages; the trace context travels in the headers. The connection comes back
by itself after an outage. Knows no subject and no message in particular.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import nats.errors
from google.protobuf.message import Message
from nats.aio.msg import Msg
from opentelemetry.context import Context

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import (
    BusDisconnectedError,
    MessageTooLargeError,
    RequestTimeoutError,
)
from pagoda_runtime.messaging.asked import Asked
from pagoda_runtime.messaging.client import OnMessage
from pagoda_runtime.messaging.client_errors import translated, translation
from pagoda_runtime.messaging.codec import (
    ERROR_HEADER,
    decode,
    header_block,
    kind_of,
    make_headers,
)
from pagoda_runtime.messaging.connection import Connection
from pagoda_runtime.messaging.request_server import RequestServer, with_read_at
from pagoda_runtime.messaging.streams import ConsumerProgress, Streams
from pagoda_runtime.messaging.subjects import is_inbox
from pagoda_runtime.messaging.subscription import Subscription
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.telemetry.metrics import BUS_HANDLER_ERRORS
from pagoda_runtime.telemetry.tracing import attached, extract

__all__ = ["Bus", "Subscription"]

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)

CONNECT_SECONDS = 30.0
CLOSE_GRACE_SECONDS = 1.0
LOG_SECONDS = 60.0  # between lines about requests that are not answered
MAX_PENDING_MESSAGES = 65536
MAX_WAITING_REQUESTS = 1024
MAX_PENDING_BYTES = 64 << 20


class Bus:
    """A connection to NATS; made by `Bus.connect`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self._handlers = BackgroundTasks()
        self.background = BackgroundTasks()  # loops that live as long as the connection
        self._streams = Streams(self._client, self.background)
        self._say_unanswered_at = 0.0

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls, common: CommonSettings, *, name: str, timeout_seconds: float = CONNECT_SECONDS
    ) -> AsyncIterator["Bus"]:
        """Yield a connected bus; on exit, handlers get a second to finish.

        Raises:
            BusConnectError: no connection within `timeout_seconds`, or the token was refused.
        """
        connection = Connection(common.nats_url, user=common.nats_user)
        await connection.open(name, common.nats_token.get_secret_value(), timeout_seconds)
        bus = cls(connection)
        try:
            yield bus
        finally:
            connection.begin_closing()
            await bus.background.close()
            await bus._handlers.close(grace_seconds=CLOSE_GRACE_SECONDS)
            await connection.close()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up now."""
        return self._connection.is_connected

    @property
    def lost_seconds(self) -> float:
        """How long the connection has been down; 0 while it is up."""
        return self._connection.lost_seconds

    async def answers(self, seconds: float) -> bool:
        """Tell whether NATS sends a message back to us within that time.

        A server that stands still keeps its connections; else only pings tell, after 10 s or more.
        """
        return await self._connection.answers(seconds)

    async def publish(
        self, subject: str, message: Message, *, context: Context | None = None
    ) -> None:
        """Send without waiting; while disconnected, up to 8 MiB wait for the connection.

        Raises:
            BusDisconnectedError: the buffer is full, or the bus is closed.
            MessageTooLargeError: the server takes no message of this size.
        """
        self._post(subject, message, header_block(make_headers(context)))

    def post(self, subject: str, message: Message) -> None:
        """Send as `publish` does, without a trace context and within this call.

        Raises:
            BusDisconnectedError: the buffer is full, or the bus is closed.
            MessageTooLargeError: the server takes no message of this size.
        """
        self._post(subject, message, b"")

    def _post(self, subject: str, message: Message, headers: bytes) -> None:
        payload = message.SerializeToString()
        try:
            self._client.post(subject, payload, headers=headers)
        except nats.errors.Error as error:
            raise translation(error, subject, len(payload), self._client.max_payload) from error

    async def request(
        self,
        subject: str,
        message: Message,
        response_type: type[R],
        *,
        timeout_seconds: float,
        context: Context | None = None,
    ) -> R:
        """Ask and return the answer. While disconnected it waits within the same time.

        The request carries how long its answer is still waited for when it is sent.

        Raises:
            RequestTimeoutError: no answer in time.
            NoResponderError: nobody listens.
            RemoteHandlerError: the responder's handler raised.
            MessageTooLargeError: the server takes no message of this size.
            MessageFormatError: the answer is no `response_type`.
            BusError: the subject is none, or too much waits for the connection.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        if not self._connection.is_up:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connection.wait()
            except TimeoutError:
                raise RequestTimeoutError(subject, timeout_seconds) from None
        asked = self._ask(subject, message, response_type, timeout_seconds, deadline, context)
        return await asked.answer()

    def ask(
        self,
        subject: str,
        message: Message,
        response_type: type[R],
        *,
        timeout_seconds: float,
        context: Context | None = None,
    ) -> Asked[R]:
        """Ask as `request` does, within this call; the answer is awaited later, or never.

        Raises:
            BusDisconnectedError: the connection is not up.
            MessageTooLargeError: the server takes no message of this size.
        """
        if not self.is_connected:
            raise BusDisconnectedError(f"NATS is not connected: {subject} not sent")
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        return self._ask(subject, message, response_type, timeout_seconds, deadline, context)

    async def subscribe(
        self, subject: str, message_type: type[M], handler: Callable[[M, Context], Awaitable[None]]
    ) -> Subscription:
        """Hand each message to `handler`, one at a time and in order.

        When this returns the server knows the subscription. At most 65536 messages (64 MiB) wait;
        more are dropped and counted. An exception of the handler is logged and counted.
        `unsubscribe` cancels a running handler.
        """

        async def on_message(message: Msg) -> None:
            try:
                context = extract(message.headers)
                with attached(context):
                    await handler(decode(message_type, message), context)
            except Exception:
                BUS_HANDLER_ERRORS.labels(kind_of(subject)).inc()
                logger.exception("the handler of %s failed", message.subject)

        with translated(subject):
            raw = await self._client.subscribe(
                subject,
                cb=on_message,
                pending_msgs_limit=MAX_PENDING_MESSAGES,
                pending_bytes_limit=MAX_PENDING_BYTES,
            )
        await self._connection.barrier()
        return Subscription(raw.unsubscribe)

    async def listen(
        self, subject: str, message_type: type[M], handler: Callable[[M], None]
    ) -> Subscription:
        """Hand each message to `handler` as soon as it is read, in order; nothing waits in between.

        For what comes often and is handled quickly: nothing else is read meanwhile. When this
        returns the server knows the subscription. An exception of the handler is logged and
        counted.
        """

        def on_message(message: Msg) -> None:
            try:
                handler(decode(message_type, message))
            except Exception:
                BUS_HANDLER_ERRORS.labels(kind_of(subject)).inc()
                logger.exception("the handler of %s failed", message.subject)

        return await self._listen(subject, on_message)

    async def serve(
        self,
        subject: str,
        request_type: type[M],
        handler: Callable[[M, Context], Awaitable[Message]],
        *,
        queue: str = "",
        max_concurrent: int = 256,
    ) -> Subscription:
        """Answer requests, at most `max_concurrent` at once.

        Up to 1024 more (64 MiB) wait, the newest are served first, and those whose callers have
        given up not at all: shed, counted and, in case they have not, told so. `read_at` of a
        handler's context is when its request was read. If the handler raises, the caller gets a
        RemoteHandlerError with the exception's text. `unsubscribe` lets running handlers and
        waiting requests finish.
        """

        async def answer(message: Msg, moment: float) -> None:
            await self._answer(message, moment, request_type, handler)

        server = RequestServer(
            answer,
            self._refuse,
            self._handlers,
            max_concurrent=max_concurrent,
            max_waiting=MAX_WAITING_REQUESTS,
        )
        return await self._listen(subject, server.on_message, queue=queue)

    async def ensure_stream(
        self,
        name: str,
        subjects: list[str],
        *,
        max_bytes: int,
        discard_old: bool,
    ) -> None:
        """Create or update a JetStream stream in file storage; see `Streams.ensure`.

        Only the service that `permissions` lets do so; the others call `watch_stream`.
        """
        await self._streams.ensure(
            name,
            subjects,
            max_bytes=max_bytes,
            discard_old=discard_old,
        )

    def watch_stream(self, name: str, subjects: list[str]) -> None:
        """Know a stream that another process makes; see `Streams.watch`."""
        self._streams.watch(name, subjects)

    async def publish_durable(
        self,
        subject: str,
        message: Message,
        *,
        message_id: str,
        timeout_seconds: float,
        context: Context | None = None,
    ) -> None:
        """Store a message in its stream and wait for the acknowledgement; see `Streams.publish`."""
        await self._streams.publish(
            subject,
            message.SerializeToString(),
            message_id=message_id,
            timeout_seconds=timeout_seconds,
            headers=make_headers(context),
        )

    async def consume(
        self,
        stream: str,
        durable: str,
        message_type: type[M],
        handler: Callable[[list[M]], Awaitable[None]],
        *,
        batch: int,
        in_order: bool = False,
        trim_seconds: float | None = None,
    ) -> Subscription:
        """Hand a stream's messages to `handler` until it succeeds; see `Streams.consume`."""
        return await self._streams.consume(
            stream,
            durable,
            message_type,
            handler,
            batch=batch,
            in_order=in_order,
            trim_seconds=trim_seconds,
        )

    async def consumer_progress(self, stream: str, durable: str) -> ConsumerProgress:
        """Return how far a durable is; see `Streams.progress`."""
        return await self._streams.progress(stream, durable)

    def _ask(
        self,
        subject: str,
        message: Message,
        response_type: type[R],
        timeout_seconds: float,
        deadline: float,
        context: Context | None,
    ) -> Asked[R]:
        payload = message.SerializeToString()
        remaining_seconds = deadline - asyncio.get_running_loop().time()
        headers = header_block(make_headers(context, remaining_seconds))
        try:
            reply = self._connection.replies.ask(subject, payload, headers, deadline)
        except nats.errors.Error as error:
            raise translation(error, subject, len(payload), self._client.max_payload) from error
        return Asked(subject, reply, response_type, timeout_seconds)

    async def _listen(
        self, subject: str, on_message: OnMessage, *, queue: str = ""
    ) -> Subscription:
        with translated(subject):
            raw = await self._client.listen(subject, on_message, queue=queue)
        await self._connection.barrier()
        return Subscription(raw.unsubscribe)

    async def _answer(
        self,
        message: Msg,
        moment: float,
        request_type: type[M],
        handler: Callable[[M, Context], Awaitable[Message]],
    ) -> None:
        payload, headers = b"", None
        try:
            context = with_read_at(extract(message.headers), moment)
            with attached(context):
                response = await handler(decode(request_type, message), context)
            payload = response.SerializeToString()
            if len(payload) > self._client.max_payload:
                raise MessageTooLargeError(message.subject, len(payload), self._client.max_payload)
        except Exception as error:
            payload = b""
            BUS_HANDLER_ERRORS.labels(kind_of(message.subject)).inc()
            logger.exception("the handler of %s failed", message.subject)
            headers = {ERROR_HEADER: f"{type(error).__name__}: {error}"[:1024]}
        await self._reply(message, payload, headers)

    async def _refuse(self, message: Msg, reason: str) -> None:
        await self._reply(message, b"", {ERROR_HEADER: reason})

    async def _reply(self, message: Msg, payload: bytes, headers: dict[str, str] | None) -> None:
        if not message.reply:
            return
        if not is_inbox(message.reply):
            if time.monotonic() >= self._say_unanswered_at:
                self._say_unanswered_at = time.monotonic() + LOG_SECONDS
                logger.warning(
                    "not answered: %s wants its answer on %.200r, which is nobody's inbox",
                    kind_of(message.subject), message.reply,
                )  # fmt: skip
            return
        with contextlib.suppress(nats.errors.Error):  # no connection: the caller hears nothing
            self._client.post(message.reply, payload, headers=header_block(headers))
