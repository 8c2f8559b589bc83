"""Load of our own choices that workers have not reported yet.

Without it every request within one heartbeat would see the same idle worker.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PendingLoad:
    """Load that a choice puts on a worker."""

    num_sequences: int = 0
    num_prefill_tokens: int = 0
    num_context_tokens: int = 0
    num_blocks: int = 0

    def __add__(self, other: "PendingLoad") -> "PendingLoad":
        return PendingLoad(
            self.num_sequences + other.num_sequences,
            self.num_prefill_tokens + other.num_prefill_tokens,
            self.num_context_tokens + other.num_context_tokens,
            self.num_blocks + other.num_blocks,
        )

    def __sub__(self, other: "PendingLoad") -> "PendingLoad":
        return PendingLoad(
            self.num_sequences - other.num_sequences,
            self.num_prefill_tokens - other.num_prefill_tokens,
            self.num_context_tokens - other.num_context_tokens,
            self.num_blocks - other.num_blocks,
        )


_NOTHING = PendingLoad()


@dataclass(slots=True)
class _Pending:
    """Loads of one worker with their times, the oldest first, and their sum."""

    loads: deque[tuple[float, PendingLoad]] = field(default_factory=deque)
    total: PendingLoad = _NOTHING


class PendingLoads:
    """Loads by worker; each ends with the first heartbeat that can include it, or by age."""

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
            max_seconds: a load never counts longer than this.
            clock: seconds; ours, so workers' clocks do not matter.
        """
        self._settle_seconds, self._max_seconds, self._clock = settle_seconds, max_seconds, clock
        self._pending: dict[str, _Pending] = {}

    def add(self, worker_id: str, load: PendingLoad) -> None:
        """Count `load` as load of a worker from now on."""
        pending = self._pending.setdefault(worker_id, _Pending())
        pending.loads.append((self._clock(), load))
        pending.total += load

    def on_heartbeat(self, worker_id: str) -> None:
        """Drop what the heartbeat that just arrived includes."""
        self._drop_older(worker_id, self._settle_seconds)

    def forget(self, worker_id: str) -> None:
        """Drop everything of a worker that is gone."""
        self._pending.pop(worker_id, None)

    def of(self, worker_id: str) -> PendingLoad:
        """Return the load to add to what a worker reported."""
        self._drop_older(worker_id, self._max_seconds)
        pending = self._pending.get(worker_id)
        return _NOTHING if pending is None else pending.total

    def _drop_older(self, worker_id: str, seconds: float) -> None:
        pending = self._pending.get(worker_id)
        if pending is None:
            return
        oldest = self._clock() - seconds
        while pending.loads and pending.loads[0][0] <= oldest:
            pending.total -= pending.loads.popleft()[1]
        if not pending.loads:
            del self._pending[worker_id]
