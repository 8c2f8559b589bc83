"""A bounded arena in shared memory, through which blocks go to workers on the same host.

One file in /dev/shm per producer, readable by its user only. It is cut into slots of one block. The
file's head has one number per slot: the ticket of the push that filled it, 0 = free. The producer
writes tickets and data; the consumer copies a slot and writes 0. A full arena is no error: the
payload then travels inline. The producer holds a lock on its file while it lives, so a file without
one was left by a killed process.
"""

import contextlib
import fcntl
import mmap
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagoda.worker.kv_transfer.digests import ByteArray

FOLDER = Path("/dev/shm")
MAGIC = int.from_bytes(b"PAGODAK1", "little")
_NAME = re.compile(r"pagoda-kv-[0-9a-f]{32}")
_HEAD_WORDS = 4  # magic, slot bytes, number of slots, offset of slot 0


class ArenaError(Exception):
    """This arena cannot be made or opened; payloads travel inline instead."""


class Arena:
    """The producer's side. Thread-safe."""

    def __init__(self, *, slot_bytes: int, max_bytes: int, folder: Path = FOLDER) -> None:
        """Make an arena of at most `max_bytes`, and remove what killed processes left.

        Raises:
            ArenaError: there is no shared memory, or not enough of it.
        """
        num_slots = max_bytes // slot_bytes
        if num_slots < 1:
            raise ArenaError(f"{max_bytes} bytes hold no block of {slot_bytes} bytes")
        data_offset = _page_aligned((_HEAD_WORDS + num_slots) * 8)
        size = data_offset + num_slots * slot_bytes
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        self.name = f"pagoda-kv-{secrets.token_hex(16)}"
        self._path = folder / self.name
        try:
            remove_stale_arenas(folder)
            self._file = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ArenaError(f"{self._path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(
                self._file, 0, size
            )  # reserved now: a full tmpfs would kill us later
            self._map = mmap.mmap(self._file, size)
        except OSError as error:
            self._unlink()
            raise ArenaError(f"{self._path}: {size} bytes: {error.strerror}") from error
        head = np.frombuffer(self._map, dtype=np.uint64, count=_HEAD_WORDS + num_slots)
        head[:_HEAD_WORDS] = (MAGIC, slot_bytes, num_slots, data_offset)
        self._tickets: npt.NDArray[np.uint64] = head[_HEAD_WORDS:]
        self._slots: ByteArray = np.frombuffer(
            self._map, dtype=np.uint8, offset=data_offset
        ).reshape(num_slots, slot_bytes)
        self._data_offset = data_offset
        self._lock = threading.Lock()
        self._last_ticket = 0

    @property
    def num_used_slots(self) -> int:
        """Slots that were filled and not yet taken."""
        return int(np.count_nonzero(self._tickets))

    def new_ticket(self) -> int:
        """Return the number of a new push."""
        self._last_ticket += 1
        return self._last_ticket

    def put(self, ticket: int, block: ByteArray) -> int | None:
        """Copy one block in. Returns its offset in the arena, or None if no slot is free."""
        with self._lock:
            slot = self._take_slot(ticket)
        if slot is None:
            return None
        self._slots[slot] = block
        return self._data_offset + slot * self.slot_bytes

    def _take_slot(self, ticket: int) -> int | None:
        """Claim the first free slot (its memory is warm); the consumer does not know of it yet."""
        slot = int(np.argmin(self._tickets))
        if self._tickets[slot]:
            return None
        self._tickets[slot] = ticket
        return slot

    def release(self, ticket: int) -> None:
        """Free all slots of a push that has ended."""
        self._tickets[self._tickets == ticket] = 0

    def close(self) -> None:
        """Remove the file. Consumers that have it mapped keep their mapping."""
        self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._file >= 0:
            os.close(self._file)  # also drops the lock
            self._file = -1


class ArenaReader:
    """The consumer's side of another process's arena."""

    def __init__(self, name: str, *, slot_bytes: int, folder: Path = FOLDER) -> None:
        """Map an arena by the name its producer sent.

        Raises:
            ArenaError: not on this host, not ours, or of another layout.
        """
        if not _NAME.fullmatch(name):
            raise ArenaError(f"{name!r} is no arena's name")
        path = folder / name
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaError(f"{path}: {error.strerror}") from error
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise ArenaError(f"{path} is not a file of this user")
            if status.st_size < _HEAD_WORDS * 8:
                raise ArenaError(f"{path} has {status.st_size} bytes, too few for an arena")
            self._map = mmap.mmap(file, status.st_size)
        finally:
            os.close(file)
        head = np.frombuffer(self._map, dtype=np.uint64, count=_HEAD_WORDS)
        magic, found_slot_bytes, num_slots, data_offset = (int(word) for word in head)
        if magic != MAGIC or found_slot_bytes != slot_bytes:
            raise ArenaError(f"{path} is no arena with slots of {slot_bytes} bytes")
        if status.st_size < data_offset + num_slots * slot_bytes:
            raise ArenaError(f"{path} is shorter than its head says")
        self._tickets = np.frombuffer(
            self._map, dtype=np.uint64, count=num_slots, offset=_HEAD_WORDS * 8
        )
        self._slots: ByteArray = np.frombuffer(
            self._map, dtype=np.uint8, count=num_slots * slot_bytes, offset=data_offset
        ).reshape(num_slots, slot_bytes)
        self._data_offset = data_offset
        self._slot_bytes = slot_bytes

    def take(self, offset: int, out: ByteArray) -> None:
        """Copy the block at `offset` into `out` and free its slot.

        The slot may change under the copy if its push has ended: the digest tells.

        Raises:
            ArenaError: no slot begins there.
        """
        slot, rest = divmod(offset - self._data_offset, self._slot_bytes)
        if rest or not 0 <= slot < len(self._slots):
            raise ArenaError(f"no slot begins at offset {offset}")
        ticket = self._tickets[slot]
        out[:] = self._slots[slot]
        if self._tickets[slot] == ticket:  # not of an ended push whose slot went to another one
            self._tickets[slot] = 0


def remove_stale_arenas(folder: Path = FOLDER) -> int:
    """Remove arenas whose producer is dead. Returns how many."""
    return sum(map(_remove_if_stale, _arena_paths(folder)))


def _arena_paths(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _remove_if_stale(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # another user's, or gone
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_size == 0:  # being made right now
            return False
        path.unlink(missing_ok=True)
        return True
    except OSError:  # its producer lives
        return False
    finally:
        os.close(file)


def _page_aligned(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
