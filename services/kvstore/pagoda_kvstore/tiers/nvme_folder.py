"""The NVMe tier's folder: one process holds it; it has the store's id and the segments.

Files that are no segments of this version are left alone and reported.
"""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from pagoda_kvstore.errors import NvmeFolderInUseError, SegmentFormatError
from pagoda_kvstore.tiers import segment
from pagoda_kvstore.tiers.segment import SegmentScan

_LOCK_NAME = "lock"
_ID_NAME = "store_id"
_ID = re.compile(rb"[a-z0-9]+(-[a-z0-9]+)*")  # also one token of a subject
_MAX_ID_BYTES = 64

logger = logging.getLogger(__name__)


class NvmeFolder:
    """An exclusively held folder of segments."""

    def __init__(self, path: Path) -> None:
        """Take the folder, creating it if needed.

        Raises:
            NvmeFolderInUseError: another process holds it.
            OSError: it cannot be created or written.
        """
        self.path = path
        self._id = ""
        self._take()

    def is_held(self) -> bool:
        """Return whether the folder is still the one that was taken: it may have been removed."""
        try:
            return os.path.samestat((self.path / _LOCK_NAME).stat(), self._taken)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a device that fails is there
            return True

    def take_again(self) -> None:
        """Take what lies at the folder's path now, creating it if needed, and keep the id there.

        Raises:
            NvmeFolderInUseError: another process holds it.
            OSError: it cannot be created or written.
        """
        removed_fd = self._lock_fd
        self._take()
        os.close(removed_fd)
        if self._id:
            self._keep_id()

    def close(self) -> None:
        """Let another process take the folder."""
        os.close(self._lock_fd)

    def store_id(self, make_id: Callable[[], str]) -> str:
        """Return the id kept in the folder, made at its first use: restarts keep it."""
        self._id = self._kept_id()
        if not self._id:
            self._id = make_id()
            self._keep_id()
        return self._id

    def _take(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise NvmeFolderInUseError(self.path) from error
        self._lock_fd, self._taken = lock_fd, os.fstat(lock_fd)

    def _kept_id(self) -> str:
        path = self.path / _ID_NAME
        try:
            with path.open("rb") as file:
                kept = file.read(_MAX_ID_BYTES + 2).strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            logger.warning("%s cannot be read, the store has a new id: %s", path, error)
            return ""
        if len(kept) > _MAX_ID_BYTES or not _ID.fullmatch(kept):
            logger.warning("%s is damaged, the store has a new id: it says %r", path, kept)
            return ""
        return kept.decode()

    def _keep_id(self) -> None:
        path = self.path / _ID_NAME
        draft = path.with_suffix(".new")
        try:
            with draft.open("w") as file:
                file.write(f"{self._id}\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:  # a full disk: routers learn of the blocks anew at each start
            logger.warning("the store's id is not kept in %s: %s", path, error)

    def segment_path(self, sequence: int) -> Path:
        """Return where segment `sequence` lies."""
        return self.path / f"{sequence:012d}{segment.SUFFIX}"

    def scan(self) -> tuple[list[SegmentScan], list[Path]]:
        """Return the usable segments, oldest first, torn tails cut off; and the files refused."""
        scans, refused = [], []
        for path in sorted(self.path.glob(f"*{segment.SUFFIX}")):
            try:
                found = segment.scan(path)
                if path != self.segment_path(found.header.sequence):
                    raise SegmentFormatError(
                        path, f"its header says sequence {found.header.sequence}"
                    )
                if found.num_torn_bytes:
                    os.truncate(path, found.header.offset(found.num_slots))
            except (SegmentFormatError, OSError) as error:
                logger.warning("segment refused: %s", error)
                refused.append(path)
                continue
            if found.num_torn_bytes or found.num_bad_records:
                logger.warning(
                    "segment %s: %d torn bytes cut off, %d damaged records skipped",
                    path.name, found.num_torn_bytes, found.num_bad_records,
                )  # fmt: skip
            scans.append(found)
        return sorted(scans, key=lambda scan: scan.header.sequence), refused


def first_free_folder(path: Path, num_folders: int) -> NvmeFolder:
    """Take `path`, or the first of `path`-2, `path`-3, ... that no other process holds.

    Which one a replica gets is chance: what they hold is named by content, and each folder keeps
    the id under which routers know it.

    Raises:
        NvmeFolderInUseError: all `num_folders` are held; names the last.
        OSError: one cannot be created or written.
    """
    for number in range(1, num_folders):
        with contextlib.suppress(NvmeFolderInUseError):
            return NvmeFolder(_numbered(path, number))
    return NvmeFolder(_numbered(path, num_folders))


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.name}-{number}")
