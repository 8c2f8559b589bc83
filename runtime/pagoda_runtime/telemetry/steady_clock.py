"""A wall clock that nobody sets while something is timed by it."""

import time
from collections.abc import Callable


class SteadyClock:
    """Unix seconds whose differences are the monotonic clock's.

    Stages of a request are told as moments, for traces, and how long one took is what lies between
    two: a clock that was set meanwhile made an hour of a millisecond, in metrics for good.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self.sync()

    def __call__(self) -> float:
        """Return the time."""
        return self._monotonic() + self._offset

    def sync(self) -> None:
        """Go by the wall clock from now on; call it while nothing is timed."""
        self._offset = self._wall() - self._monotonic()
