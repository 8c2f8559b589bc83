"""What is to be done once all that came with a step has been taken in, for all streams at once.

A handle of the event loop for each stream and token costs more than the token, and makes the
garbage collector run.
"""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class AfterStep:
    """Calls back in the event loop's next turn; belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[Callable[[], None]] = []

    def call(self, callback: Callable[[], None]) -> None:
        """Call `callback` once everything that has arrived by now has been taken in."""
        if not self._due:
            self._loop.call_soon(self._call_all)
        self._due.append(callback)

    def _call_all(self) -> None:
        due, self._due = self._due, []
        for callback in due:
            try:
                callback()
            except Exception:  # the others are not to blame
                logger.exception("%r failed", callback)
