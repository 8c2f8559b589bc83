"""Records in files of a folder, numbered: each record has its length and checksum before it.

What a crash tore off at the end of a file is seen and left out. Knows no record's meaning. Reading
blocks.
"""

import asyncio
import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pagoda_gateway.accounts.usage.disk_sync import DiskSync, disk_sync
from pagoda_gateway.accounts.usage.folder_lock import sync_folder

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 20  # a file that is longer is followed by another one, and deleted as a whole
MAX_RECORD_BYTES = 1 << 18
SUFFIX = ".log"
_HEADER = struct.Struct("<II")  # length of the record, CRC-32 of it
READ_BYTES = MAX_RECORD_BYTES + _HEADER.size


def framed(record: bytes) -> bytes:
    """Return a record as it is written."""
    if len(record) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(record)} bytes; the limit is {MAX_RECORD_BYTES}")
    return _HEADER.pack(len(record), zlib.crc32(record)) + record


def unframed(data: bytes) -> tuple[list[bytes], int]:
    """Return the whole records that `data` begins with, and how many bytes they take."""
    records, offset = list[bytes](), 0
    while offset + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, offset)
        start = offset + _HEADER.size
        record = data[start : start + length]
        if len(record) < length or zlib.crc32(record) != checksum:
            break
        records.append(record)
        offset = start + length
    return records, offset


def segment_path(folder: Path, number: int) -> Path:
    """Return where a segment lies."""
    return folder / f"{number:010}{SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    """Return the segments that a folder has, in order; none if it is gone."""
    return sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}"))


class SegmentWriter:
    """Appends to a folder that nobody else writes. One call at a time."""

    def __init__(self, folder: Path, sync: DiskSync | None = None) -> None:
        """Write to `folder`; `sync` is closed with this."""
        self._folder = folder
        self._sync = sync or disk_sync()
        self._number = 0
        self._size = 0
        self._file: int | None = None

    async def write(self, records: Iterable[bytes]) -> tuple[int, int]:
        """Write and sync records; return (segment, its size). All of them are stored, or none.

        The event loop copies them to the kernel's pages itself, while no sync is under way, as
        Redis does: that takes microseconds where a thread takes a tenth of a millisecond.

        Raises:
            OSError: the disk is full or broken. The next call begins another segment.
        """
        data = b"".join(map(framed, records))
        if self._file is None or self._size >= SEGMENT_BYTES:
            self._file = await asyncio.to_thread(self._next_segment)
        try:
            _write_all(self._file, data)
            await self._sync.sync(self._file)
        except OSError:
            await asyncio.to_thread(self._cut_off)
            raise
        self._size += len(data)
        return self._number, self._size

    def close(self) -> None:
        """Let go of file and sync."""
        self._close_file()
        self._sync.close()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)

    def _cut_off(self) -> None:
        """Cut off what is in the file now, which may stay or not, nobody knows; begin anew."""
        assert self._file is not None, "it was written to"
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._size)
            os.fdatasync(self._file)
        self._close_file()

    def _next_segment(self) -> int:
        self._close_file()
        self._number, self._size = self._number + 1, 0
        path = segment_path(self._folder, self._number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        sync_folder(self._folder)
        return file


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records, in order; `place` is the same whenever the same ones are read.

    None, where what lies there is no record: bytes that a crash or the disk damaged.
    """

    place: str
    records: list[bytes]
    segment: int
    start: int
    end: int


class SegmentReader:
    """Reads a folder from its beginning, and deletes segments that were done with.

    Args:
        folder: to read.
        end_of: bytes of a segment that may be read by now; None: not known, none.
        numbers: of the segments that may be there, in order.
        is_last: nothing will be added to any segment.
    """

    def __init__(
        self,
        folder: Path,
        end_of: Callable[[int], int | None],
        numbers: Callable[[], Iterable[int]],
        *,
        is_last: bool,
    ) -> None:
        self._folder = folder
        self._end_of = end_of
        self._numbers = numbers
        self._is_last = is_last
        self._segment = 0
        self._offset = 0

    def next(self) -> Batch | None:
        """Return what comes after the last `done`, as much as one read has; None: nothing yet."""
        while True:
            end = self._end_of(self._segment) if self._segment else 0
            if end is None or self._offset >= end:
                if not self._advance():
                    return None
                continue
            with segment_path(self._folder, self._segment).open("rb") as file:
                data = os.pread(file.fileno(), min(READ_BYTES, end - self._offset), self._offset)
            records, used = unframed(data)
            if not used:
                used = end - self._offset
                logger.warning(
                    "%s: its last %d bytes are no record; a crash cuts off what was not promised",
                    segment_path(self._folder, self._segment), used,
                )  # fmt: skip
            start = self._offset
            place = f"{self._folder.name}:{self._segment}:{start}:{used}"
            return Batch(place, records, self._segment, start, start + used)

    def done(self, batch: Batch) -> None:
        """Go on behind a batch, for good."""
        self._offset = batch.end

    def _advance(self) -> bool:
        """Go to the next segment, if there is one: then nothing is added to this one any more."""
        numbers = (n for n in self._numbers() if n > self._segment)
        later = next((n for n in numbers if self._end_of(n) is not None), None)
        if self._segment and (later is not None or self._is_last):
            segment_path(self._folder, self._segment).unlink(missing_ok=True)
        if later is None:
            return False
        self._segment, self._offset = later, 0
        return True


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
