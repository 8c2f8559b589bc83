"""The outbox: records on this host's disk, synced, before anybody else has them.

One task writes: what waits while the disk syncs goes with the next sync, all together. Knows no
record's meaning and no network; `forwarder` sends what is here.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagoda_gateway import metrics
from pagoda_gateway.accounts.usage.folder_lock import FolderLock
from pagoda_gateway.accounts.usage.segments import (
    MAX_RECORD_BYTES,
    Batch,
    SegmentReader,
    SegmentWriter,
)
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0

OnState = Callable[[bool, str], None]  # (takes records, else why not)


class OutboxError(Exception):
    """A record is not stored, and will not be."""


@dataclass(slots=True, eq=False)
class _Entry:
    record: bytes
    is_kept: bool
    stored: "asyncio.Future[None]"


class Outbox:
    """One process's records; made by `Outbox.open`, in a folder of its own.

    What waits to be written is bounded by who appends: a request has two records at a time at most.
    """

    def __init__(
        self,
        lock: FolderLock,
        *,
        max_bytes: int,
        on_state: OnState,
        writer: SegmentWriter | None = None,
    ) -> None:
        self.has_more = asyncio.Event()  # to be read
        self.is_drained = asyncio.Event()  # nothing is left to be read
        self.is_drained.set()
        self.num_bytes = 0  # on disk and not `done`
        self.num_done_bytes = 0  # ever
        self._lock = lock
        self._max_bytes = max_bytes
        self._on_state = on_state
        self._writer = writer or SegmentWriter(lock.folder)
        self._ends: dict[int, int] = {}  # synced bytes of each segment
        # The folder is its own: it need not look there for what it has written itself.
        self._reader = SegmentReader(
            lock.folder, self._ends.get, lambda: sorted(self._ends), is_last=False
        )
        self._trouble = ""  # of the disk
        self._full = ""
        self._queue: list[_Entry] = []
        self._has_entries = asyncio.Event()
        self._is_closing = asyncio.Event()
        self._has_ended = False
        self._tasks = BackgroundTasks()

    @classmethod
    async def open(cls, root: Path, name: str, *, max_bytes: int, on_state: OnState) -> "Outbox":
        """Return a new outbox, `root / name`.

        Raises:
            OSError: its folder cannot be made.
        """
        lock = await asyncio.to_thread(FolderLock.make, root / name)
        outbox = cls(lock, max_bytes=max_bytes, on_state=on_state)
        outbox.start()
        on_state(True, "")
        return outbox

    def start(self) -> None:
        """Begin to write; until `close`."""
        self._tasks.start(self._run(), name="outbox")

    @property
    def folder(self) -> Path:
        """Where it lies; whoever adopts it reads what else is there, too."""
        return self._lock.folder

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self._lock.folder.name

    def append(self, record: bytes, *, is_kept: bool = False) -> "asyncio.Future[None]":
        """Queue a record; the future is done once it is on disk.

        `is_kept`: it is never refused, and waits while the disk takes nothing. Else the future
        raises OutboxError, and the record is not stored.

        Raises:
            OutboxError: there is no room, or the disk takes nothing.
        """
        if len(record) > MAX_RECORD_BYTES:
            raise OutboxError(f"{len(record)} bytes are no usage record ({MAX_RECORD_BYTES})")
        if not is_kept:
            self._check_room()
        entry = _Entry(record, is_kept, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self._has_entries.set()
        return entry.stored

    def next_batch(self) -> Batch | None:
        """Return the first records that are not `done`; None: there are none."""
        self.has_more.clear()
        return self._reader.next()

    def done(self, batch: Batch) -> None:
        """Somebody else has these records safely."""
        self._reader.done(batch)
        for number in [number for number in self._ends if number < batch.segment]:
            del self._ends[number]
        self.num_done_bytes += batch.end - batch.start
        self._count(batch.start - batch.end)

    async def close(self) -> None:
        """Write what waits, stop, and delete the folder if nothing in it is needed.

        What is left is for whoever adopts it.
        """
        self._is_closing.set()
        self._has_entries.set()
        await self._tasks.close(grace_seconds=CLOSE_SECONDS)  # a disk may hang
        self._writer.close()
        is_empty = self._has_ended and not self._queue and self.is_drained.is_set()
        await asyncio.to_thread(self._lock.release, delete=is_empty)

    def _check_room(self) -> None:
        if reason := self._trouble or self._full:
            raise OutboxError(reason)

    def _count(self, num_bytes: int) -> None:
        """Note bytes that were written, or done (less than 0)."""
        self.num_bytes += num_bytes
        metrics.OUTBOX_BYTES.set(self.num_bytes)
        if self.num_bytes:
            self.is_drained.clear()
        else:
            self.is_drained.set()
        is_full = self.num_bytes >= self._max_bytes
        if is_full != bool(self._full):
            self._full = (
                f"{self.num_bytes} bytes of usage records wait in {self._lock.folder}, the limit "
                f"is {self._max_bytes} (PAGODA_GATEWAY_OUTBOX_BYTES): NATS takes none, or too few"
                if is_full
                else ""
            )
            self._report()

    def _report(self) -> None:
        reason = self._trouble or self._full
        if reason:
            logger.error("%s", reason)
        else:
            logger.warning("the outbox takes records again")
        self._on_state(not reason, reason)

    async def _run(self) -> None:
        while entries := await self._take():
            started = time.perf_counter()
            try:
                segment, end = await self._writer.write(entry.record for entry in entries)
            except OSError as error:
                self._on_failed(entries, error)
                if not await self._wait_to_retry(entries):
                    return
                continue
            self._on_stored(entries, segment, end)
            metrics.OUTBOX_COMMIT_SECONDS.observe(time.perf_counter() - started)
        self._has_ended = True

    async def _take(self) -> list[_Entry]:
        """Return what waits, all that one turn of the event loop has brought; nothing: the end."""
        if not self._is_closing.is_set():
            await self._has_entries.wait()
            self._has_entries.clear()
        entries, self._queue = self._queue, []
        return entries

    async def _wait_to_retry(self, entries: list[_Entry]) -> bool:
        """Put back what is kept, or an empty record that shows whether the disk is well again."""
        kept = [entry for entry in entries if entry.is_kept]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._is_closing.wait()
        nobody_s = _Entry(b"", True, asyncio.get_running_loop().create_future())
        self._queue[:0] = kept or [nobody_s]
        self._has_entries.set()
        return not self._is_closing.is_set()

    def _on_stored(self, entries: list[_Entry], segment: int, end: int) -> None:
        num_bytes, self._ends[segment] = end - self._ends.get(segment, 0), end
        if self._trouble:
            self._trouble = ""
            self._report()
        self._count(num_bytes)
        for entry in entries:
            if not entry.stored.done():
                entry.stored.set_result(None)
        self.has_more.set()

    def _on_failed(self, entries: list[_Entry], error: OSError) -> None:
        reason = (
            f"usage records cannot be written to {self._lock.folder} ({error.strerror or error}): "
            "make room on this disk, or set PAGODA_GATEWAY_OUTBOX_DIR"
        )
        if reason != self._trouble:
            self._trouble = reason
            self._report()
        for entry in entries:
            if not entry.is_kept and not entry.stored.done():
                entry.stored.set_exception(OutboxError(reason))
