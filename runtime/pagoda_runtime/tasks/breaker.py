"""A circuit breaker: after failures in a row nobody asks for a while, then one tries."""

import time
from collections.abc import Callable

_MAX_FAILURES = 2


class Breaker:
    """Closed (everybody asks), open (nobody does), or half open (one is trying)."""

    def __init__(self, *, open_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_seconds, self._clock = open_seconds, clock
        self._num_failures = 0
        self._open_until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the last attempts failed."""
        return self._open_until is not None

    def allows(self) -> bool:
        """Return whether to ask now. When the time is up one caller gets True, others wait on."""
        if self._open_until is None:
            return True
        now = self._clock()
        if now < self._open_until:
            return False
        self._open_until = now + self._open_seconds
        return True

    def record(self, *, has_succeeded: bool) -> None:
        """Note how an attempt went."""
        if has_succeeded:
            self._num_failures, self._open_until = 0, None
            return
        self._num_failures += 1
        if self._num_failures >= _MAX_FAILURES:
            self._open_until = self._clock() + self._open_seconds
