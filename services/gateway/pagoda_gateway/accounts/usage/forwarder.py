"""Sends what outboxes have to JetStream: this process's own, and those of dead ones on this host.

Several records go in one message, one message at a time, so order is kept and what comes meanwhile
goes together; who has sent all waits a moment for more. What was sent and not yet forgotten when a
process died is sent again: the ledger counts each record once. Of dead ones goes after that what
their clients had (see `deliveries`). Knows no record's meaning beyond its message.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError
from opentelemetry.context import Context

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageRecord
from pagoda_gateway import metrics
from pagoda_gateway.accounts.usage.deliveries import NotedTokens, left_in
from pagoda_gateway.accounts.usage.folder_lock import FolderLock, folders_of
from pagoda_gateway.accounts.usage.outbox import Outbox
from pagoda_gateway.accounts.usage.segments import (
    Batch,
    SegmentReader,
    segment_numbers,
    segment_path,
)
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.retry import retry_delay

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
GATHER_SECONDS = 0.25  # a message a request costs the gateway, NATS and the applier more than this
ADOPT_SECONDS = 5.0
POLL_SECONDS = 0.05
RECORDS_TOGETHER = 512
_ADOPTED = "adopted"  # a file: who holds the folder has not made it

OnState = Callable[[bool, str], None]


class Forwarder:
    """Runs beside one outbox, for as long as its gateway."""

    def __init__(
        self,
        bus: Bus,
        outbox: Outbox,
        root: Path,
        *,
        timeout_seconds: float,
        unix_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make one.

        Args:
            bus: to JetStream.
            outbox: the own one.
            root: where outboxes of this host lie.
            timeout_seconds: of one write; then it is tried again.
            unix_clock: Unix seconds, of what it makes of notes.
            clock: seconds.
        """
        self._bus = bus
        bus.watch_stream(subjects.USAGE_STREAM, [subjects.USAGE_ALL])
        self._outbox = outbox
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._unix_clock = unix_clock
        self._failing_since: float | None = None
        self._wanted = asyncio.Event()  # a look for what dead processes left
        self._num_passes = 0  # begun
        self._last_whole_pass = 0  # after which nothing was left

    async def run(self) -> None:
        """Send the own outbox's records until cancelled."""
        while True:
            try:
                await self._send_own()
            except OSError as error:
                logger.error("the outbox cannot be read: %s", error)
                await asyncio.sleep(retry_delay(RETRY_SECONDS))

    async def adopt_forever(self) -> None:
        """Send what dead processes left, now, every few seconds, and when somebody waits for it."""
        while True:
            self._wanted.clear()
            self._num_passes += 1
            if await self._adopt_all():
                self._last_whole_pass = self._num_passes
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_delay(ADOPT_SECONDS)):
                    await self._wanted.wait()

    async def until_sent(self) -> None:
        """Return once JetStream has what was written on this host before, however long that takes.

        That is what this process has written, and what dead ones have left.
        """
        outbox = self._outbox
        end, last_pass = outbox.num_done_bytes + outbox.num_bytes, self._num_passes
        self._wanted.set()
        while True:
            if self._last_whole_pass > last_pass and outbox.num_done_bytes >= end:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _adopt_all(self) -> bool:
        """Send what dead processes left; return whether nothing of it is left now."""
        try:
            folders = await asyncio.to_thread(folders_of, self._root)
        except OSError as error:
            logger.error("outboxes of dead gateways cannot be listed: %s", error)
            return False
        is_all = True
        for folder in folders:
            try:
                lock = await asyncio.to_thread(FolderLock.take, folder)
                if lock is not None:
                    await self._adopt(lock)
                elif await asyncio.to_thread(_is_being_sent, folder):
                    is_all = False
            except OSError as error:
                logger.error("the outbox %s of a dead gateway: %s", folder.name, error)
                is_all = False
        return is_all

    async def _send_own(self) -> None:
        """Send what there is, then what comes, a moment after the first of it.

        Not at once: its request is on its way to its first token then.
        """
        while True:
            batch = self._outbox.next_batch()
            if batch is None:
                await self._outbox.has_more.wait()
                await asyncio.sleep(GATHER_SECONDS)
                continue
            await self._send(batch)
            self._outbox.done(batch)

    async def _adopt(self, lock: FolderLock) -> None:
        folder, is_sent, num_records = lock.folder, False, 0
        reader = SegmentReader(
            folder,
            lambda n: _size(segment_path(folder, n)),
            lambda: segment_numbers(folder),
            is_last=True,
        )
        try:
            with contextlib.suppress(OSError):  # the disk may be full
                await asyncio.to_thread((folder / _ADOPTED).touch)
            while (batch := await asyncio.to_thread(reader.next)) is not None:
                await self._send(batch)
                reader.done(batch)
                num_records += len(batch.records)
            left = await asyncio.to_thread(lambda: list(left_in(folder)))
            for start in range(0, len(left), RECORDS_TOGETHER):
                now, some = self._unix_clock(), left[start : start + RECORDS_TOGETHER]
                records = [_of_sequence(folder.name, noted, now) for noted in some]
                await self._send_records(records, f"{folder.name}-delivered-{start}")
            is_sent = True
        finally:  # of a cancelled one another process sends the rest
            lock.release(delete=is_sent)
        metrics.ADOPTED_OUTBOXES.inc()
        logger.warning("sent %d usage records that %s had left", num_records, folder.name)

    async def _send(self, batch: Batch) -> None:
        """Return once JetStream has the records, however long that takes."""
        records = [record for data in batch.records if (record := _decoded(data)) is not None]
        if records:
            await self._send_records(records, batch.place)

    async def _send_records(self, records: list[UsageRecord], place: str) -> None:
        while True:
            try:
                await self._publish(UsageRecord(batch=records), place)
            except BusError as error:
                if self._failing_since is None:
                    self._failing_since = self._clock()
                    logger.warning("usage records wait in the outbox: %s", error)
                await asyncio.sleep(retry_delay(RETRY_SECONDS))
            else:
                break
        if self._failing_since is not None:
            seconds = self._clock() - self._failing_since
            logger.warning("usage records leave the outbox again, after %.0f s", seconds)
            self._failing_since = None

    async def _publish(self, message: UsageRecord, place: str) -> None:
        await self._bus.publish_durable(
            subjects.USAGE_REQUESTS,
            message,
            message_id=place,
            timeout_seconds=self._timeout_seconds,
            context=Context(),
        )


def _of_sequence(gateway_id: str, noted: NotedTokens, now: float) -> UsageRecord:
    """Return a dead gateway's word of a sequence, as workers give theirs."""
    return UsageRecord(
        sequence=SequenceUsage(
            record_id=f"{gateway_id}-{noted.sequence_index}",
            request_id=noted.request_id,
            sequence_index=noted.sequence_index,
            worker_id=gateway_id,
            role=Role.ROLE_GATEWAY,
            num_published_tokens=noted.num_tokens,
            ended_unix_seconds=now,
        )
    )


def _decoded(data: bytes) -> UsageRecord | None:
    """Return a record; None: an empty one, which only tried the disk, or no record of ours."""
    try:
        return UsageRecord.FromString(data) if data else None
    except DecodeError as error:
        logger.error("%d bytes in an outbox are no usage record: %s", len(data), error)
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _is_being_sent(folder: Path) -> bool:
    """Return whether another gateway sends what is in the folder of a dead one."""
    return (folder / _ADOPTED).exists() and not FolderLock.is_left(folder)
