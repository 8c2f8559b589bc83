"""Whether a tier's device takes writes: each change is logged once, a refusal is tried again later.

Knows errors and a clock. Knows no file and no block.
"""

import errno
import logging
from collections.abc import Callable
from pathlib import Path

RETRY_SECONDS = 5.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

logger = logging.getLogger(__name__)


class DeviceState:
    """Writes to one folder. Used by one thread."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.num_errors = 0
        self._path, self._clock = path, clock
        self._retry_at = 0.0
        self._is_failing = False

    def may_write(self) -> bool:
        """Return whether to try: always, but after a refusal only once in a while."""
        return not self._is_failing or self._clock() >= self._retry_at

    def refused(self, error: Exception) -> None:
        """Note that a write failed for good."""
        self.num_errors += 1
        self._retry_at = self._clock() + RETRY_SECONDS
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "%s takes no blocks (%s): they are dropped, and writing is tried again every %g s",
                self._path, error, RETRY_SECONDS,
            )  # fmt: skip

    def taken(self) -> None:
        """Note that a write went well."""
        if self._is_failing:
            self._is_failing = False
            logger.warning("%s takes blocks again", self._path)


def is_no_space(error: OSError) -> bool:
    """Return whether room on the device would help."""
    return error.errno in _NO_SPACE


def is_passing(error: OSError) -> bool:
    """Return whether the process lacked something, which says nothing about the file."""
    return error.errno in _NO_DESCRIPTOR
