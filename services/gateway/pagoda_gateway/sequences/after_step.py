"""When streams write what a step has brought: at once, or once more of them have come.

What a frame touches is in the processor's caches for a moment: to write then costs less than later.
But a gateway that falls behind finds several steps waiting: those it gathers, so that they take one
write of each stream. Never does a stream take a handle of the event loop for itself: a step would
make as many as there are streams, and the garbage collector run.
"""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

Callback = Callable[[], None]


class AfterStep:
    """Calls back; belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_first = False  # the first step of this turn of the event loop is being taken in
        self._has_begun = False  # a step of this turn has
        self._due: list[Callback] = []

    def begin(self) -> None:
        """A step is about to be taken in."""
        self._is_first = not self._has_begun
        if self._is_first:
            self._has_begun = True
            self._loop.call_soon(self._end_turn)

    def end(self) -> None:
        """It has been."""
        self._is_first = False

    def call(self, callback: Callback, *, can_be_now: bool = False) -> None:
        """Call `callback`, in the next turn, when all that has arrived by then was taken in.

        `can_be_now`: nothing else of this step concerns it, so it may be called before this
        returns, unless other steps have come, too.
        """
        if can_be_now and self._is_first:
            _call(callback)
            return
        if not self._due:
            self._loop.call_soon(self._call_due)
        self._due.append(callback)

    def _end_turn(self) -> None:
        self._has_begun = False

    def _call_due(self) -> None:
        due, self._due = self._due, []
        for callback in due:
            _call(callback)


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:  # the others are not to blame
        logger.exception("%r failed", callback)
