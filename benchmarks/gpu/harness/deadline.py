"""The time a run may still take. Knows a clock and nothing else."""

import time
from collections.abc import Callable


class Deadline:
    """A moment on a monotonic clock, and shares of what is left until then."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end = now() + seconds

    @property
    def seconds_left(self) -> float:
        """0 once the moment has passed."""
        return max(0.0, self._end - self._now())

    @property
    def has_passed(self) -> bool:
        """Whether nothing is left."""
        return self.seconds_left == 0.0

    def share(self, fraction: float) -> "Deadline":
        """An earlier moment: that fraction of what is left now."""
        return Deadline(self.seconds_left * fraction, self._now)
