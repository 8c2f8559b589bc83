"""How many tokens of each running sequence its client has, where that outlives the process.

A file mapped into memory: to write there is as quick as memory, and the kernel keeps it when the
process is killed. When the machine loses power it is of an earlier moment, so its name says of
which boot it is, and a later one does not read it: then workers' records tell, as without a file.
"""

import contextlib
import logging
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pagoda_runtime.identity import host_id

logger = logging.getLogger(__name__)

_LAYOUT = 1  # of the slots; another one is another file
_SLOT = struct.Struct("<58sHI")  # request id, sequence index, tokens; begins with zero: free
_TOKENS = struct.Struct("<I")
_TOKENS_AT = _SLOT.size - _TOKENS.size
_FIRST_SLOTS = 1024
_MAX_INDEX = 2**16 - 1
_MAX_TOKENS = 2**31 - 1


class Slot:
    """One sequence's place in the file, until `end`."""

    __slots__ = ("_deliveries", "_offset")

    def __init__(self, deliveries: "Deliveries", offset: int) -> None:
        self._deliveries = deliveries
        self._offset = offset

    def note(self, num_tokens: int) -> None:
        """Say how many tokens the client has now."""
        _TOKENS.pack_into(self._deliveries.slots, self._offset + _TOKENS_AT, num_tokens)

    def end(self) -> None:
        """Give the slot back: the account is closed. Nothing may be noted any more."""
        self._deliveries.free(self._offset)


class Deliveries:
    """The running sequences of one process, in a folder that is its own."""

    def __init__(self, folder: Path) -> None:
        """Make the file.

        Raises:
            OSError: it cannot be made, or there is no room for it.
        """
        self._path = _path(folder)
        self._free: list[int] = []
        self._has_room = True  # on the disk, for more slots
        size = _FIRST_SLOTS * _SLOT.size
        with self._path.open("x+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # to write where no room is would kill us
            self.slots = mmap.mmap(file.fileno(), size)
        self._add(0, size)

    def begin(self, request_id: str, sequence_index: int) -> Slot | None:
        """Take a slot for a sequence whose client has nothing; None: there is none."""
        name = request_id.encode()
        if len(name) > _TOKENS_AT - 2 or sequence_index > _MAX_INDEX:
            return None
        if not self._free and not self._grow():
            return None
        offset = self._free.pop()
        _SLOT.pack_into(self.slots, offset, name, sequence_index, 0)
        return Slot(self, offset)

    def free(self, offset: int) -> None:
        """See `Slot.end`."""
        self.slots[offset] = 0
        self._free.append(offset)

    def _grow(self) -> bool:
        if not self._has_room:
            return False
        size = len(self.slots)
        try:
            with self._path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, 2 * size)
            self.slots.resize(2 * size)
        except OSError as error:
            self._has_room = False
            logger.warning("what clients got is noted for %d at a time: %s", self.num_slots, error)
            return False
        self._add(size, 2 * size)
        return True

    @property
    def num_slots(self) -> int:
        """Sequences that there is room for."""
        return len(self.slots) // _SLOT.size

    def _add(self, start: int, end: int) -> None:
        self._free += range(end - _SLOT.size, start - 1, -_SLOT.size)  # the first is taken first


def deliveries_in(folder: Path) -> Deliveries | None:
    """Return where deliveries are noted; None, and a word in the log, if they cannot be."""
    try:
        return Deliveries(folder)
    except OSError as error:
        logger.warning("what clients got is not noted in %s: %s", folder, error)
        return None


class NotedTokens(NamedTuple):
    """What the client of a sequence had when its gateway died."""

    request_id: str
    sequence_index: int
    num_tokens: int


def left_in(folder: Path) -> Iterator[NotedTokens]:
    """Yield what a dead process noted of sequences that were running, in this boot.

    Raises:
        OSError: the file is there, and cannot be read.
    """
    data = b""
    with contextlib.suppress(FileNotFoundError):
        data = _path(folder).read_bytes()
    num_bad = 0
    for name, index, num_tokens in _SLOT.iter_unpack(data[: len(data) // _SLOT.size * _SLOT.size]):
        if not name[0]:
            continue
        request_id = name.rstrip(b"\0").decode("ascii", errors="replace")
        if request_id.isascii() and request_id.isprintable() and num_tokens <= _MAX_TOKENS:
            yield NotedTokens(request_id, index, num_tokens)
        else:  # it would keep all records from the ledger
            num_bad += 1
    if num_bad:
        logger.error("%d slots of %s are damaged", num_bad, _path(folder))


def _path(folder: Path) -> Path:
    return folder / f"delivered-{_LAYOUT}-{host_id()}"
