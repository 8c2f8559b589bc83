"""Cancellations that came before what they cancel: a message and a request may overtake each other.

Knows names of sequences. Knows nothing of what they hold.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

KEPT_SECONDS = 30.0
"""Longer than any hand-over may take."""

MAX_KEPT = 65_536


class Cancellations:
    """Remembers for a while what must not begin any more.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: OrderedDict[tuple[str, int | None], tuple[float, int | None]] = OrderedDict()

    def add(self, request_id: str, indices: Iterable[int], attempt: int | None) -> None:
        """Cancel these sequences of a request up to this attempt.

        Args:
            request_id: of the request.
            indices: of its sequences; none = all.
            attempt: the last one that is cancelled; None = every one.
        """
        until = self._clock() + KEPT_SECONDS
        for index in tuple(indices) or (None,):
            key = request_id, index
            _, before = self._last.pop(key, (0.0, -1))
            both = None if attempt is None or before is None else max(attempt, before)
            self._last[key] = until, both
        while self._last and (len(self._last) > MAX_KEPT or self._is_old()):
            self._last.popitem(last=False)

    def covers(self, request_id: str, index: int, attempt: int) -> bool:
        """Tell whether this attempt of a sequence has been cancelled."""
        for key in ((request_id, index), (request_id, None)):
            until, last = self._last.get(key, (0.0, -1))
            if until > self._clock() and (last is None or attempt <= last):
                return True
        return False

    def _is_old(self) -> bool:
        until, _ = next(iter(self._last.values()))
        return until <= self._clock()
