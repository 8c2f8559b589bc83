"""How many tokens of each running sequence its client has, where that outlives the process.

A file mapped into memory: to write there is as quick as memory, and the kernel keeps it when the
process is killed. Not when the machine loses power: then workers' records tell, as where there is
no file.
"""

import contextlib
import logging
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

_FILE = "delivered"
_SLOT = struct.Struct("<58sHI")  # request id, sequence index, tokens; all zeros: free
_TOKENS = struct.Struct("<I")
_TOKENS_AT = _SLOT.size - _TOKENS.size
_FREE = bytes(_SLOT.size)
_FIRST_SLOTS = 1024
_MAX_INDEX = 2**16 - 1


class Delivery:
    """One sequence's slot, until `end`."""

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
        size = _FIRST_SLOTS * _SLOT.size
        self._free: list[int] = []
        self._file = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(self._file, 0, size)  # to write where no room is would kill us
            self.slots = mmap.mmap(self._file, size)
        except OSError:
            os.close(self._file)
            raise
        self._add(0, size)

    def begin(self, request_id: str, sequence_index: int) -> Delivery | None:
        """Take a slot for a sequence whose client has nothing; None: there is none."""
        name = request_id.encode()
        if len(name) > _TOKENS_AT - 2 or sequence_index > _MAX_INDEX:
            return None
        if not self._free and not self._grow():
            return None
        offset = self._free.pop()
        _SLOT.pack_into(self.slots, offset, name, sequence_index, 0)
        return Delivery(self, offset)

    def free(self, offset: int) -> None:
        """See `Delivery.end`."""
        self.slots[offset : offset + _SLOT.size] = _FREE
        self._free.append(offset)

    def close(self) -> None:
        """Let go of the file, which stays."""
        self.slots.close()
        os.close(self._file)

    def _grow(self) -> bool:
        size = len(self.slots)
        try:
            os.posix_fallocate(self._file, 0, 2 * size)
            self.slots.resize(2 * size)
        except OSError as error:
            logger.warning("what further clients got is not noted: %s", error)
            return False
        self._add(size, 2 * size)
        return True

    def _add(self, start: int, end: int) -> None:
        self._free += range(end - _SLOT.size, start - 1, -_SLOT.size)  # the first is taken first


@contextlib.contextmanager
def noted_in(folder: Path) -> Iterator[Deliveries | None]:
    """Yield where deliveries are noted; None, and a word in the log, if they cannot be."""
    try:
        deliveries = Deliveries(folder)
    except OSError as error:
        logger.warning("what clients got is not noted in %s: %s", folder, error)
        yield None
        return
    try:
        yield deliveries
    finally:
        deliveries.close()


class Delivered(NamedTuple):
    """What the client of a sequence had when its gateway died."""

    request_id: str
    sequence_index: int
    num_tokens: int


def left_in(folder: Path) -> Iterator[Delivered]:
    """Yield what a dead process noted of sequences that were running; nothing without a file."""
    try:
        data = (folder / _FILE).read_bytes()
    except FileNotFoundError:
        return
    whole = len(data) - len(data) % _SLOT.size
    for name, index, num_tokens in _SLOT.iter_unpack(data[:whole]):
        if name := name.rstrip(b"\0"):
            yield Delivered(name.decode(errors="replace"), index, num_tokens)
