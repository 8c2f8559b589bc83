"""A pull consumer of one JetStream stream: batches to a handler, acknowledged after it returned.

The client library's fetch() waits for a full batch or its timeout, and its abandoned pulls take
messages along. Here one pull stays open; whatever has arrived is handed on at once.

Messages whose handler failed go back to the stream, for any replica, and nothing is handed on for a
while that grows with each failure in a row. What is handed on then is one message, and after each
success twice as many: one that never succeeds holds up few others, and not for long.

Of messages whose content is said to be at fault each is handed on alone, and one that is refused
alone and came often enough is dropped, as those that cannot be decoded are.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import nats.errors
import nats.js.errors
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from pagoda_runtime.errors import MessageContentError, MessageFormatError, StreamError
from pagoda_runtime.messaging.codec import decode
from pagoda_runtime.tasks.cancellation import cancellation_kept
from pagoda_runtime.tasks.retry import retry_delay
from pagoda_runtime.telemetry.metrics import BUS_HANDLER_ERRORS

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

ACK_WAIT_SECONDS = 30.0
CLOSE_SECONDS = 2.0
HANDLER_SECONDS = 25.0  # below ACK_WAIT_SECONDS, else a batch would run twice at once
RETRY_SECONDS = 1.0  # after the first failure; twice as long after each further one in a row
MAX_RETRY_SECONDS = 10.0
CONTENT_TRIES = 3  # what is refused for its content may clash with what another replica does
LOG_SECONDS = 60.0  # between lines about handlers that fail
PULL_SECONDS = 30.0
HEARTBEAT_SECONDS = 0.5
SILENCE_SECONDS = 1.25  # without any sign of the pull: ask again
PAUSE_SECONDS = 0.1

ACK_PREFIX = "$JS.ACK."
ACK = b"+ACK"
TERM = b"+TERM"
NAK_NOW = b"-NAK"
IN_PROGRESS = b"+WPI"


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


def retry_seconds(num_failures: int) -> float:
    """Return how long to wait after so many failures in a row, at least one."""
    return min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(num_failures - 1, 30))


class FailureLog:
    """Says that handlers fail when that begins, then once a minute, and when they work again.

    Where they fail and work by turns, that is said once a minute, too.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._said_at: float | None = None
        self._failing_since: float | None = None
        self._is_said = False
        self.num_failures = 0  # in a row

    async def failed(self, error: Exception, num_waiting: Callable[[], Awaitable[str]]) -> None:
        """Note a failure; `num_waiting` says what waits meanwhile, if it is asked."""
        now = self._clock()
        has_begun = self._failing_since is None
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        self.num_failures += 1
        if self._said_at is not None and now - self._said_at < LOG_SECONDS:
            return
        self._said_at, self._is_said = now, True
        waiting = await num_waiting()
        if has_begun:
            logger.error(
                "%s: the handler fails; %s messages wait and come again",
                self._name, waiting, exc_info=error,
            )  # fmt: skip
        else:
            logger.error(
                "%s: the handler has failed for %.0f s (%s); %s messages wait",
                self._name, now - since, type(error).__name__, waiting,
            )  # fmt: skip

    def succeeded(self) -> None:
        """Note that a handler returned."""
        if self._failing_since is None:
            return
        if self._is_said:
            seconds = self._clock() - self._failing_since
            logger.info("%s: the handler works again, after %.0f s", self._name, seconds)
        self._failing_since, self._is_said, self.num_failures = None, False, 0


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
        on_missing: Callable[[], None],
    ) -> None:
        """Make a consumer; `on_missing` is called whenever there is no such stream."""
        assert config.durable_name
        self._client = client
        self._jetstream = client.jetstream(timeout=5)
        self._stream = stream
        self._durable = config.durable_name
        self._config = config
        self._batch = batch
        self._message_type = message_type
        self._handler = handler
        self._on_missing = on_missing
        self._name = f"{stream}/{self._durable}"
        self._failures = FailureLog(self._name)
        self._num_together = batch  # messages that are handed on at once
        self._num_refusals = Counter[int]()  # for their content, of messages by their numbers
        self._inbox = client.new_inbox()
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()  # bounded by the one open pull
        self._pull_number = 0
        self._num_expected = 0
        self._subscription: ClientSubscription | None = None

    async def open(self) -> None:
        """Create the durable where it is missing and listen for what it sends."""
        await self._ensure_durable()
        await self._listen()

    async def close(self) -> None:
        """Stop listening; what was delivered but not handed on comes again elsewhere."""
        await self._drain(self._subscription)
        await self._give_back_arrived()

    async def _listen(self) -> None:
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_message)

    async def _drain(self, subscription: ClientSubscription | None) -> None:
        """End a subscription once what is on its way has arrived: else that is lost for long."""
        if subscription is None:
            return
        with contextlib.suppress(nats.errors.Error, TimeoutError), cancellation_kept():
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._client.is_connected:
                    await subscription.drain()  # type: ignore[no-untyped-call]
                else:
                    await subscription.unsubscribe()

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
        while len(messages) < self._num_together and not self._arrived.empty():
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
        if self._failures.num_failures:  # they may have waited for long
            await self._reply_all(kept, IN_PROGRESS)
        try:
            async with asyncio.timeout(HANDLER_SECONDS):
                await self._handler(messages)
        except asyncio.CancelledError:
            await self._reply_all(kept, NAK_NOW)
            raise
        except MessageContentError as error:
            BUS_HANDLER_ERRORS.labels(self._stream).inc()
            if len(kept) == 1:
                await self._refuse(kept[0], error)
                return
            for number, message in enumerate(kept):
                await self._reply_all(kept[number:], IN_PROGRESS)
                await self._apply([message])
        except Exception as error:
            BUS_HANDLER_ERRORS.labels(self._stream).inc()
            await self._wait_after(error, kept)
        else:
            await self._reply_all(kept, ACK)
            if self._num_refusals:
                for message in kept:
                    self._num_refusals.pop(message.metadata.sequence.stream, None)
            self._failures.succeeded()
            self._num_together = min(self._batch, 2 * self._num_together)

    async def _refuse(self, message: Msg, error: MessageContentError) -> None:
        """Have one that was refused alone come again, or drop it."""
        number = message.metadata.sequence.stream
        self._num_refusals[number] += 1  # deliveries in an outage are none
        num_refusals = self._num_refusals[number]
        if num_refusals < CONTENT_TRIES:
            await self._reply(message, _nak_later(num_refusals))
            return
        del self._num_refusals[number]
        logger.error("%s: dropped message %d, of %d tries: %s",
                     self._name, number, num_refusals, error)  # fmt: skip
        await self._reply(message, TERM)

    async def _wait_after(self, error: Exception, failed: list[Msg]) -> None:
        """Give everything back to the stream, and take nothing for a while."""
        await self._end_pull()
        # Before them, so that what fails does not come first the next time.
        await self._give_back_arrived()
        self._num_expected = 0
        for message in failed:
            await self._reply(message, _nak_later(message.metadata.num_delivered))
        await self._failures.failed(error, self._num_waiting)
        self._num_together = 1
        await asyncio.sleep(retry_delay(retry_seconds(self._failures.num_failures)))

    async def _end_pull(self) -> None:
        """Have the server send nothing more: it would lie here while another replica could work."""
        ended, self._inbox = self._subscription, self._client.new_inbox()
        await self._listen()
        await self._drain(ended)

    async def _give_back_arrived(self) -> None:
        for _ in range(self._arrived.qsize()):
            message = self._arrived.get_nowait()
            if (status := _status(message)) is None:
                self._num_expected -= 1
                await self._reply(message, NAK_NOW)
            elif message.subject == self._pull_subject and status != "100":
                self._num_expected = 0

    async def _num_waiting(self) -> str:
        """Return how many messages are not acknowledged yet, as far as JetStream says so."""
        try:
            info = await self._jetstream.consumer_info(self._stream, self._durable)
        except nats.errors.Error:
            return "some"
        return str((info.num_pending or 0) + (info.num_ack_pending or 0))

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
            if isinstance(error, nats.js.errors.NotFoundError):
                self._on_missing()
            raise StreamError(self._name, str(error) or repr(error)) from error

    async def _reply_all(self, messages: list[Msg], verdict: bytes) -> None:
        for message in messages:
            await self._reply(message, verdict)

    async def _reply(self, message: Msg, verdict: bytes) -> None:
        if not message.reply.startswith(ACK_PREFIX):
            return  # no message of a stream
        with contextlib.suppress(nats.errors.Error):  # unacknowledged messages come again
            await self._client.publish(message.reply, verdict)


def _nak_later(num_delivered: int) -> bytes:
    """Return what has a message come again, the later the oftener it came."""
    delay = int(retry_seconds(num_delivered) * 1e9)
    return b"-NAK " + json.dumps({"delay": delay}).encode()


def _status(message: Msg) -> str | None:
    """Return the code of a status message (100, 404, 408, ...), None for a real message."""
    if message.reply.startswith(ACK_PREFIX):
        return None  # it is in the stream, whatever headers its sender gave it
    headers = message.headers
    return headers.get("Status") if headers and not message.data else None
