"""A seat at the table where workers of one machine share its processors: see `sources/threads.h`.

The table is a file that all of them map. A seat is a byte of it that is locked, so the system gives
back the seat of a process that ends, however it ends.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import time
from pathlib import Path

NUM_SEATS = 16  # as in threads.h
SEAT_BYTES = 64
BUSY_NANOSECONDS = 5_000_000  # as there
_LAST_TASK = struct.Struct("=q")


class NoSeatError(Exception):
    """As many workers as there may be share these processors already."""


class Seat:
    """One worker's place; taken as long as this object lives, and its process at most."""

    def __init__(self, path: Path) -> None:
        """Take a free seat at the table in `path`, which is made if it is not there.

        Raises:
            NoSeatError: all are taken.
            OSError: the file cannot be opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, NUM_SEATS * SEAT_BYTES)
        self.index = self._take()
        self._memory = mmap.mmap(self._file, NUM_SEATS * SEAT_BYTES)
        self.table = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def others_compute(self) -> bool:
        """Whether somebody else began a task just now."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return any(
            now - _LAST_TASK.unpack_from(self._memory, index * SEAT_BYTES)[0] < BUSY_NANOSECONDS
            for index in range(NUM_SEATS)
            if index != self.index
        )

    def rest(self) -> None:
        """Say that we compute nothing, before others would see it."""
        _LAST_TASK.pack_into(self._memory, self.index * SEAT_BYTES, 0)

    def _take(self) -> int:
        for index in range(NUM_SEATS):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index * SEAT_BYTES)
            except OSError:  # somebody sits there
                continue
            return index
        os.close(self._file)
        raise NoSeatError(f"{NUM_SEATS} workers share the processors already")
