"""Load of our own choices that workers have not reported yet.

Without it every request within one heartbeat would see the same idle worker.
"""

import time
from collections import deque
from collections.abc import Callable

from pagoda_router.workers.worker import Charge


class InFlight:
    """Charges by worker. A charge ends with the first heartbeat that can include it, or by age."""

    def __init__(
        self,
        *,
        settle_seconds: float,
        max_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember choices.

        Args:
            settle_seconds: a heartbeat that arrives this long after a choice includes it.
            max_seconds: a charge never counts longer than this.
            clock: seconds; ours, so workers' clocks do not matter.
        """
        self._settle_seconds, self._max_seconds, self._clock = settle_seconds, max_seconds, clock
        self._charges: dict[str, deque[tuple[float, Charge]]] = {}

    def add(self, worker_id: str, charge: Charge) -> None:
        """Count `charge` as load of a worker from now on."""
        self._charges.setdefault(worker_id, deque()).append((self._clock(), charge))

    def on_heartbeat(self, worker_id: str) -> None:
        """Drop what the heartbeat that just arrived includes."""
        self._drop_older(worker_id, self._settle_seconds)

    def charge(self, worker_id: str) -> Charge:
        """Return the load to add to what a worker reported."""
        self._drop_older(worker_id, self._max_seconds)
        return sum((charge for _, charge in self._charges.get(worker_id, ())), Charge())

    def _drop_older(self, worker_id: str, seconds: float) -> None:
        charges = self._charges.get(worker_id)
        if charges is None:
            return
        oldest = self._clock() - seconds
        while charges and charges[0][0] <= oldest:
            charges.popleft()
        if not charges:
            del self._charges[worker_id]
