"""JetStream: streams, durable publishing, durable consumers."""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import nats.errors
import nats.js.errors
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamState

from pagoda_runtime.errors import RequestTimeoutError, StreamError
from pagoda_runtime.messaging.stream_consumer import StreamConsumer, consumer_config
from pagoda_runtime.messaging.stream_repair import StreamRepair
from pagoda_runtime.messaging.subscription import Subscription
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.tasks.ending import end

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

DUPLICATE_WINDOW_SECONDS = 120.0
ATTEMPT_SECONDS = 2.0
PAUSE_SECONDS = 0.05
READY_SECONDS = 15.0
NAME_IN_USE = 10058
NO_STORAGE = 10047  # of what the server may use on its disk, as much is promised to streams
MIN_STREAM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """How far a durable is.

    Attributes:
        last_sequence: of the newest message in the stream.
        done_sequence: all messages up to here were acknowledged.
        num_waiting: messages that were not acknowledged yet, delivered or not.
    """

    last_sequence: int
    done_sequence: int
    num_waiting: int


class Streams:
    """JetStream over one connection."""

    def __init__(self, client: Client, tasks: BackgroundTasks) -> None:
        self._client = client
        self._tasks = tasks
        self._jetstream = client.jetstream(timeout=5)
        self._repair = StreamRepair(client, tasks)

    async def ensure(
        self,
        name: str,
        subjects: list[str],
        *,
        max_bytes: int,
        discard_old: bool,
    ) -> None:
        """Create the stream, or change it to these limits; several processes may do so at once.

        Where the server's disk has no room for `max_bytes`, the limit is halved until it has, down
        to 1 MiB. From now on, a stream that stops storing is noticed here, or heard of from those
        who write it, and repaired, see `StreamRepair`.

        Raises:
            StreamError: JetStream refused, or was not there within 15 s.
        """
        config = StreamConfig(
            name=name,
            subjects=subjects,
            storage=StorageType.FILE,
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD if discard_old else DiscardPolicy.NEW,
            max_bytes=max_bytes,
            max_age=0,  # none
            duplicate_window=DUPLICATE_WINDOW_SECONDS,
        )
        cause: Exception | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    try:
                        made = await self._ensure_once(config)
                        return await self._repair.own(made)
                    except (nats.js.errors.ServiceUnavailableError, nats.errors.Error) as error:
                        if isinstance(error, nats.js.errors.BadRequestError):
                            raise StreamError(name, str(error)) from error
                        cause = error
                    await asyncio.sleep(PAUSE_SECONDS)
        raise StreamError(name, f"not there within {READY_SECONDS:g} s ({_text(cause)})") from cause

    def watch(self, name: str, subjects: list[str]) -> None:
        """Notice from now on if the stream stops storing, and have its owner repair it.

        It need not be there yet: what is published before waits for it.
        """
        self._repair.watch(StreamConfig(name=name, subjects=subjects))

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        timeout_seconds: float,
        headers: dict[str, str] | None,
    ) -> None:
        """Store a message once, however often it is sent: JetStream drops a known id for 120 s.

        So a lost acknowledgement is retried within the time, also over a restart of the server.

        Raises:
            RequestTimeoutError: no acknowledgement in time; the message may have been stored.
            StreamError: JetStream refused, for instance because the stream is full; at once while
                that is known.
        """
        if trouble := self._repair.trouble(subject):
            raise StreamError(subject, trouble)
        headers = {**(headers or {}), "Nats-Msg-Id": message_id}
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    try:
                        attempt_seconds = min(ATTEMPT_SECONDS, timeout_seconds)
                        answer = await self._client.request(
                            subject, payload, timeout=attempt_seconds, headers=headers
                        )
                    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                        await asyncio.sleep(PAUSE_SECONDS)
                    else:
                        return _check_acknowledgement(subject, answer.data)
        except TimeoutError:
            self._repair.suspect(subject, is_silent=True)
            raise RequestTimeoutError(subject, timeout_seconds) from None
        except StreamError:
            self._repair.suspect(subject, is_silent=False)
            raise
        except nats.errors.Error as error:
            raise StreamError(subject, str(error)) from error

    async def consume(
        self,
        stream: str,
        durable: str,
        message_type: type[M],
        handler: Callable[[list[M]], Awaitable[None]],
        *,
        batch: int,
        in_order: bool,
        trim_seconds: float | None,
    ) -> Subscription:
        """Feed `handler` up to `batch` messages at a time, shared among consumers of `durable`.

        A batch is acknowledged when the handler returned, and comes again a second after it raised,
        later each time (10 s at most); content that it refuses three times (MessageContentError) is
        logged and dropped, as are messages that cannot be decoded. `in_order`: one message at a
        time across all replicas, each after the one before was acknowledged. A stream that is gone
        later has its owner make it anew.

        `trim_seconds`: acknowledged messages leave the stream, about this often; None: they stay.
        Only for a stream that nobody else reads. (Work-queue retention would do the same, but the
        server refuses it for a stream that was made without.)

        Raises:
            StreamError: the consumer cannot be created.
        """
        consumer = StreamConsumer(
            self._client,
            stream,
            consumer_config(durable, batch=batch, in_order=in_order),
            batch=batch,
            message_type=message_type,
            handler=handler,
            on_missing=functools.partial(self._repair.miss, stream),
        )
        await consumer.open()
        tasks = [self._tasks.start(consumer.run(), name=f"consume {stream}/{durable}")]
        if trim_seconds is not None:
            trimming = consumer.trim_forever(trim_seconds)
            tasks.append(self._tasks.start(trimming, name=f"trim {stream}/{durable}"))

        async def unsubscribe() -> None:
            await end(*tasks)
            await consumer.close()

        return Subscription(unsubscribe)

    async def progress(self, stream: str, durable: str) -> ConsumerProgress:
        """Return how far a durable is. One that is not there has done nothing.

        Raises:
            StreamError: JetStream does not say.
        """
        state: StreamState | None = None
        try:
            state = (await self._jetstream.stream_info(stream)).state
            info = await self._jetstream.consumer_info(stream, durable)
        except nats.js.errors.NotFoundError:
            if state is None:  # no stream: nothing was ever published
                return ConsumerProgress(0, 0, 0)
            return ConsumerProgress(state.last_seq, 0, state.messages)
        except nats.errors.Error as error:
            raise StreamError(stream, _text(error)) from error
        done = info.ack_floor.stream_seq if info.ack_floor else 0
        num_waiting = (info.num_pending or 0) + (info.num_ack_pending or 0)
        return ConsumerProgress(state.last_seq, done, num_waiting)

    async def _ensure_once(self, config: StreamConfig) -> StreamConfig:
        """Return the configuration that the server took, with the limit it had room for."""
        while True:
            try:
                await self._jetstream.add_stream(config)
                return config
            except nats.js.errors.BadRequestError as error:
                if error.err_code != NAME_IN_USE:
                    raise
                await self._jetstream.update_stream(config)
                return config
            except nats.js.errors.ServerError as error:
                if error.err_code != NO_STORAGE:
                    raise
                try:  # its limit cannot be changed now: better the old one than no stream
                    return (await self._jetstream.stream_info(config.name or "")).config
                except nats.js.errors.NotFoundError:
                    config = _halved(config)


def _halved(config: StreamConfig) -> StreamConfig:
    limit = (config.max_bytes or 0) // 2
    if limit < MIN_STREAM_BYTES:
        raise StreamError(
            config.name or "",
            f"NATS has no room for {2 * limit} bytes: make room on its disk, or raise "
            "max_file_store in its configuration",
        )
    logger.warning("JetStream %s: NATS has no room for more than %d bytes", config.name, limit)
    return replace(config, max_bytes=limit)


def _check_acknowledgement(subject: str, data: bytes) -> None:
    error = json.loads(data).get("error")
    if error:
        raise StreamError(subject, f"{error.get('description')} (code {error.get('err_code')})")


def _text(cause: Exception | None) -> str:
    return getattr(cause, "description", None) or str(cause) or repr(cause)
