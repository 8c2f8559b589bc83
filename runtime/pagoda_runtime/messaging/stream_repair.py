"""Notices a stream that takes nothing or is gone, says so at once, and brings it back when it can.

nats-server keeps the first write error of a stream (its disk was full) until the stream is made
anew or the server starts again: it goes on to acknowledge nothing, with space back or not. So,
once a probe stream shows that the disk takes writes again, the stream is made anew; one whose
messages matter only when every one of them was acknowledged, and while nothing can come in. One
process does so at a time, and only one of the stream's owners, who may change streams
(`permissions`): those who write it and notice tell them. The others see by the time at which the
server made it that it was done. Knows streams by their configuration; knows no message.
"""

import asyncio
import contextlib
import datetime
import functools
import logging
import time
from dataclasses import dataclass, field, replace

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo

from pagoda_runtime.errors import StreamError
from pagoda_runtime.messaging.subjects import is_inbox
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.tasks.retry import retry_delay

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
ANSWER_SECONDS = 2.0
ATTEMPT_SECONDS = 20.0
LEASE_SECONDS = 30.0  # longer than an attempt: nobody else begins before it has ended
APPLIED_TRIES, APPLIED_PAUSE_SECONDS = 20, 0.25
MADE_SECONDS = 30.0  # since a stream was made: who complains has not tried it yet, or has no case
IS_WELL = b"+OK"
PROBE_BYTES = 1 << 16
LEASE_STREAM, PROBE_STREAM = "PAGODA_REPAIR_LEASE", "PAGODA_REPAIR_PROBE"
PROBE_SUBJECT = "pagoda.v1.repair_probe"
_LEASE = StreamConfig(
    name=LEASE_STREAM,
    subjects=["pagoda.v1.repair_lease.*"],
    storage=StorageType.MEMORY,
    max_bytes=1 << 16,
    max_age=LEASE_SECONDS,
    duplicate_window=LEASE_SECONDS,
)
_GONE = "it is gone, and is made anew"
_EXPECT_NONE = {"Nats-Expected-Last-Subject-Sequence": "0"}


@dataclass(slots=True)
class _Watched:
    config: StreamConfig
    is_ours: bool
    created: datetime.datetime | None = None  # by the server's clock, the stream that is known here
    made_at: float = field(default_factory=time.monotonic)
    trouble: str = ""
    task: asyncio.Task[None] | None = None


class StreamRepair:
    """The streams that one connection makes or writes, and what is wrong with them."""

    def __init__(self, client: Client, tasks: BackgroundTasks) -> None:
        self._client, self._tasks = client, tasks
        self._jetstream = client.jetstream(timeout=ANSWER_SECONDS)
        self._streams: dict[str, _Watched] = {}
        self._heard: set[str] = set()

    def watch(self, config: StreamConfig) -> None:
        """Look after another's stream, of which only name and subjects need be known."""
        self._streams[config.name or ""] = _Watched(config, is_ours=False)

    async def own(self, config: StreamConfig) -> None:
        """Look after a stream that was made here, and hear of those who write it."""
        name = config.name or ""
        created = (await self._jetstream.stream_info(name)).created
        self._streams[name] = _Watched(config, is_ours=True, created=created)
        if name not in self._heard:
            self._heard.add(name)
            on_wanted = functools.partial(self._on_wanted, name)
            await self._client.subscribe(wanted_subject(name), queue="owners", cb=on_wanted)

    async def _on_wanted(self, name: str, message: Msg) -> None:
        """Repair a stream that somebody found silent or gone; say when that has been done.

        Somebody may have no case: nothing that matters is lost then, and not often.
        """
        watched = self._streams[name]
        is_well = time.monotonic() - watched.made_at < MADE_SECONDS
        self._begin(watched, is_silent=not is_well)
        if is_inbox(message.reply):
            await self._client.publish(message.reply, IS_WELL if is_well else b"")

    def trouble(self, subject: str) -> str:
        """Return why the subject's stream takes nothing now; empty: it does, or nobody knows."""
        watched = self._find(subject)
        return watched.trouble if watched else ""

    def suspect(self, subject: str, *, is_silent: bool) -> None:
        """Look into a stream that did not store a message, and stay at it until it does.

        Args:
            subject: of the message.
            is_silent: there was no answer; else it was refused, which a full stream does, too.
        """
        watched = self._find(subject)
        if watched is not None:
            self._begin(watched, is_silent)

    def miss(self, name: str) -> None:
        """Have a stream made that was not there for its reader, if it is looked after here."""
        watched = self._streams.get(name)
        if watched is not None:
            self._begin(watched, is_silent=False)

    def _begin(self, watched: _Watched, is_silent: bool) -> None:
        if watched.task is None or watched.task.done():
            work = self._look_after(watched, is_silent)
            watched.task = self._tasks.start(work, name=f"repair {watched.config.name}")

    def _find(self, subject: str) -> _Watched | None:
        for watched in self._streams.values():
            for pattern in watched.config.subjects or []:
                if subject == pattern or subject.startswith(pattern.rstrip("*>")):
                    return watched
        return None

    async def _look_after(self, watched: _Watched, is_silent: bool) -> None:
        """Return once the stream takes messages, or if the server does not answer at all."""
        is_done = False
        while not is_done:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    is_done = await self._is_well(watched, is_silent)
            except (TimeoutError, nats.errors.NoRespondersError, nats.errors.TimeoutError):
                is_done = not watched.trouble  # an outage: the client waits for its end
            except nats.errors.Error as error:
                self._set_trouble(watched, _not_stored(error))
            if not is_done:
                await asyncio.sleep(retry_delay(RETRY_SECONDS))
        self._set_trouble(watched, "")

    async def _is_well(self, watched: _Watched, is_silent: bool) -> bool:
        name = watched.config.name or ""
        info = await self._info(name)
        if self._is_new(watched, info):
            return True  # another owner has been at it
        if info is not None and _is_full(info):
            limit = info.config.max_bytes
            self._set_trouble(
                watched,
                f"it is full: {info.state.bytes} of {limit} bytes wait to be applied; "
                "it takes messages again once its consumer has caught up",
            )
            return False
        if info is not None and not is_silent:
            return True  # it answers, and has room
        if not watched.is_ours:
            is_there = info is not None
            self._set_trouble(watched, _not_stored() if is_there else _not_there(name))
            is_well = await self._owner_says_well(name)
            return is_there and is_well
        if not watched.trouble:
            self._set_trouble(watched, _GONE if info is None else _not_stored())
        if not await self._take_lease(name):
            return False
        try:
            return await self._repair(watched, is_gone=info is None)
        finally:
            await self._jetstream.purge_stream(LEASE_STREAM, subject=lease_subject(name))

    async def _info(self, name: str) -> StreamInfo | None:
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return await self._jetstream.stream_info(name)
        return None  # it was deleted, maybe by an attempt that could not make it anew

    async def _repair(self, watched: _Watched, *, is_gone: bool) -> bool:
        """Make an owned stream anew, as the only owner; return whether it is new, or back."""
        info = await self._info(watched.config.name or "")
        if self._is_new(watched, info) or (is_gone and info is not None):
            return True
        await self._probe_disk()
        return self._is_new(watched, await self._make_anew(watched.config, info))

    def _is_new(self, watched: _Watched, info: StreamInfo | None) -> bool:
        """Return whether an owned stream was made since it was last looked at, here or not."""
        if not watched.is_ours or info is None or info.created == watched.created:
            return False
        watched.created, watched.made_at = info.created, time.monotonic()
        return True

    async def _owner_says_well(self, name: str) -> bool:
        try:
            answer = await self._client.request(wanted_subject(name), timeout=ANSWER_SECONDS)
        except nats.errors.NoRespondersError:
            return True  # nobody can mend it, and it may be well: the next message will tell
        return answer.data == IS_WELL

    async def _take_lease(self, name: str) -> bool:
        await self._jetstream.add_stream(_LEASE)
        try:
            await self._jetstream.publish(lease_subject(name), headers=_EXPECT_NONE)
        except nats.js.errors.BadRequestError:
            return False  # somebody else is at it, or was a moment ago
        return True

    async def _probe_disk(self) -> None:
        """Raise what NATS says, or a timeout, unless its disk takes a message."""
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await self._jetstream.delete_stream(PROBE_STREAM)
        await self._jetstream.add_stream(
            StreamConfig(
                name=PROBE_STREAM, subjects=[PROBE_SUBJECT], storage=StorageType.FILE,
                max_bytes=4 * PROBE_BYTES,
            )
        )  # fmt: skip
        try:
            await self._jetstream.publish(PROBE_SUBJECT, bytes(PROBE_BYTES))
        finally:
            await self._jetstream.delete_stream(PROBE_STREAM)

    async def _make_anew(self, config: StreamConfig, info: StreamInfo | None) -> StreamInfo | None:
        """Return the new stream, or None: not all of the old one was acknowledged.

        Args:
            config: of both.
            info: of the old one; None: it is gone.
        """
        name = config.name or ""
        if info is not None:
            # From here on nothing comes in, so that nothing stored meanwhile is lost.
            closed = replace(config, subjects=[f"pagoda.v1.repair_closed.{name}"])
            await self._jetstream.update_stream(closed)
            if config.discard is DiscardPolicy.NEW and not await self._is_applied(name):
                await self._jetstream.update_stream(config)
                return None
            await self._jetstream.delete_stream(name)
        made = await self._jetstream.add_stream(config)
        cause = "it was gone" if info is None else "after a write error of NATS"
        logger.warning("JetStream %s was made anew: %s", name, cause)
        return made

    async def _is_applied(self, name: str) -> bool:
        """Wait a while until everything in the stream was acknowledged; return whether it was."""
        for _ in range(APPLIED_TRIES):
            state = (await self._jetstream.stream_info(name)).state
            consumers = await self._jetstream.consumers_info(name)
            floors = [info.ack_floor.stream_seq if info.ack_floor else 0 for info in consumers]
            if not state.messages or (floors and min(floors) >= state.last_seq):
                return True
            await asyncio.sleep(APPLIED_PAUSE_SECONDS)
        return False

    def _set_trouble(self, watched: _Watched, trouble: str) -> None:
        if trouble == watched.trouble:
            return
        was_well, watched.trouble = not watched.trouble, trouble
        name = watched.config.name or ""
        if trouble and was_well:
            logger.error("%s", StreamError(name, trouble))
        elif not trouble:
            logger.warning("JetStream %s takes messages again", name)


def lease_subject(name: str) -> str:
    """Who publishes here first may repair the stream of this name."""
    return f"pagoda.v1.repair_lease.{name}"


def wanted_subject(name: str) -> str:
    """Who finds the stream of this name silent tells its owners here (request)."""
    return f"pagoda.v1.repair_wanted.{name}"


def _is_full(info: StreamInfo) -> bool:
    """Return whether a stream that refuses new messages has hardly room for one."""
    limit = info.config.max_bytes or 0
    if info.config.discard is not DiscardPolicy.NEW or limit <= 0:
        return False
    return info.state.bytes + min(PROBE_BYTES, limit // 8) > limit


def _not_there(name: str) -> str:
    return f"NATS has no stream {name}: who reads it makes it, a router or an applier"


def _not_stored(error: Exception | None = None) -> str:
    cause = f" ({getattr(error, 'description', None) or error!r})" if error else ""
    return f"NATS does not store{cause}: look at its log, and make room on its disk if it is full"
