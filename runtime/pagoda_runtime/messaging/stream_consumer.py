"""A pull consumer of one JetStream stream: batches to a handler, acknowledged after it returned.

The client library's fetch() waits for a full batch or its timeout, and its abandoned pulls take
messages along. Here one pull stays open; whatever has arrived is handed on at once.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import nats.errors
import nats.js.errors
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from pagoda_runtime.errors import MessageFormatError, StreamError
from pagoda_runtime.messaging.codec import decode
from pagoda_runtime.tasks.cancellation import cancellation_kept
from pagoda_runtime.tasks.retry import retry_delay
from pagoda_runtime.telemetry.metrics import BUS_HANDLER_ERRORS

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

ACK_WAIT_SECONDS = 30.0
CLOSE_SECONDS = 2.0
HANDLER_SECONDS = 25.0  # below ACK_WAIT_SECONDS, else a batch would run twice at once
RETRY_SECONDS = 1.0
PULL_SECONDS = 30.0
HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 1.25  # without any sign of the pull: ask again
PAUSE_SECONDS = 0.1

ACK = b"+ACK"
TERM = b"+TERM"
NAK_NOW = b"-NAK"
NAK_LATER = b"-NAK " + json.dumps({"delay": int(RETRY_SECONDS * 1e9)}).encode()


def consumer_config(durable: str, *, batch: int, in_order: bool) -> ConsumerConfig:
    """Return the durable's configuration; equal on every replica."""
    return ConsumerConfig(
        durable_name=durable,
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ACK_WAIT_SECONDS,
        max_deliver=-1,
        max_ack_pending=1 if in_order else max(1024, 4 * batch),
    )


class StreamConsumer(Generic[M]):
    """Pulls, hands on, acknowledges; recreates its durable where somebody dropped it."""

    def __init__(
        self,
        client: Client,
        stream: str,
        config: ConsumerConfig,
        *,
        batch: int,
        message_type: type[M],
        handler: Callable[[list[M]], Awaitable[None]],
    ) -> None:
        assert config.durable_name
        self._client = client
        self._jetstream = client.jetstream(timeout=5)
        self._stream = stream
        self._durable = config.durable_name
        self._config = config
        self._batch = batch
        self._message_type = message_type
        self._handler = handler
        self._name = f"{stream}/{self._durable}"
        self._inbox = client.new_inbox()
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()  # bounded by the one open pull
        self._pull_number = 0
        self._num_expected = 0
        self._subscription: ClientSubscription | None = None

    async def open(self) -> None:
        """Create the durable where it is missing and listen for what it sends."""
        await self._ensure_durable()
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_message)

    async def close(self) -> None:
        """Stop listening; what was delivered but not handed on comes again elsewhere."""
        if self._subscription is None:
            return
        # What is on its way arrives before it ends; nobody would get that for ACK_WAIT_SECONDS.
        with contextlib.suppress(nats.errors.Error, TimeoutError), cancellation_kept():
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._client.is_connected:
                    await self._subscription.drain()  # type: ignore[no-untyped-call]
                else:
                    await self._subscription.unsubscribe()
        while not self._arrived.empty():
            await self._reply(self._arrived.get_nowait(), NAK_NOW)

    async def run(self) -> None:
        """Work until cancelled; outages of the server are waited for."""
        while True:
            try:
                await self._work()
            except (nats.errors.Error, StreamError) as error:
                logger.warning("%s: %s; trying again", self._name, error)
                self._num_expected = 0
                await asyncio.sleep(retry_delay(RETRY_SECONDS))

    async def trim_forever(self, pause_seconds: float) -> None:
        """Drop from the stream what this durable has acknowledged, now and after each pause.

        Only what lies below its acknowledgement floor goes, whoever of its replicas acknowledged
        it, so an unacknowledged message always stays to be delivered again.
        """
        trimmed = 0
        while True:
            try:
                with cancellation_kept():
                    info = await self._jetstream.consumer_info(self._stream, self._durable)
                    floor = info.ack_floor.stream_seq if info.ack_floor else 0
                    if floor != trimmed:
                        await self._jetstream.purge_stream(self._stream, seq=floor + 1)
                        trimmed = floor
            except nats.errors.Error as error:
                logger.warning("%s: not trimmed: %s", self._name, str(error) or repr(error))
            await asyncio.sleep(pause_seconds)

    async def _work(self) -> None:
        while True:
            if self._num_expected <= 0:
                await self._pull()
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    first = await self._arrived.get()
            except TimeoutError:
                self._num_expected = 0
                if self._client.is_connected:
                    await self._ensure_durable()
                continue
            if (status := _status(first)) is not None:
                await self._on_status(first, status)
                continue
            await self._apply(self._take_arrived(first))

    async def _on_message(self, message: Msg) -> None:
        self._arrived.put_nowait(message)

    def _take_arrived(self, first: Msg) -> list[Msg]:
        messages = [first]
        while len(messages) < self._batch and not self._arrived.empty():
            message = self._arrived.get_nowait()
            if _status(message) is None:
                messages.append(message)
            elif message.subject == self._pull_subject and _status(message) != "100":
                self._num_expected = 0
        self._num_expected -= len(messages)
        return messages

    async def _apply(self, raw: list[Msg]) -> None:
        messages: list[M] = []
        kept: list[Msg] = []
        for message in raw:
            try:
                messages.append(decode(self._message_type, message))
                kept.append(message)
            except MessageFormatError as error:
                logger.error("%s: dropped: %s", self._name, error)
                await self._reply(message, TERM)
        if not messages:
            return
        try:
            async with asyncio.timeout(HANDLER_SECONDS):
                await self._handler(messages)
        except asyncio.CancelledError:
            await self._reply_all(kept, NAK_NOW)
            raise
        except Exception:
            BUS_HANDLER_ERRORS.labels(self._stream).inc()
            logger.exception(
                "%s: the handler failed; %d messages come again", self._name, len(kept)
            )
            await self._reply_all(kept, NAK_LATER)
        else:
            await self._reply_all(kept, ACK)

    async def _on_status(self, message: Msg, status: str) -> None:
        if message.subject != self._pull_subject or status == "100":
            return  # of an earlier pull, or a heartbeat
        self._num_expected = 0
        if status not in ("404", "408"):  # neither empty nor expired: the durable may be gone
            await asyncio.sleep(PAUSE_SECONDS)
            await self._ensure_durable()

    @property
    def _pull_subject(self) -> str:
        return f"{self._inbox}.{self._pull_number}"

    async def _pull(self) -> None:
        self._pull_number += 1
        self._num_expected = self._batch
        body = {
            "batch": self._batch,
            "expires": int(PULL_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}",
            json.dumps(body).encode(),
            reply=self._pull_subject,
        )

    async def _ensure_durable(self) -> None:
        try:
            await self._jetstream.add_consumer(self._stream, config=self._config)
        except nats.js.errors.BadRequestError as error:
            raise StreamError(self._name, str(error)) from error
        except nats.errors.Error as error:
            raise StreamError(self._name, str(error) or repr(error)) from error

    async def _reply_all(self, messages: list[Msg], verdict: bytes) -> None:
        for message in messages:
            await self._reply(message, verdict)

    async def _reply(self, message: Msg, verdict: bytes) -> None:
        with contextlib.suppress(nats.errors.Error):  # unacknowledged messages come again
            await self._client.publish(message.reply, verdict)


def _status(message: Msg) -> str | None:
    """Return the code of a status message (100, 404, 408, ...), None for a real message."""
    headers = message.headers
    return headers.get("Status") if headers and not message.data else None
