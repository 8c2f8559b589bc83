"""What workers compute on, as far as plans must know: who shares it, what waits for it, how fast.

Knows no request and no prefix.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pagoda_router.placement import cost_model
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot

LATELY_SECONDS = 30.0  # what was measured before may be of a bad moment
MOST_FASTER = 4.0  # than such a moment's


class Processors:
    """The processors of all workers; those of a host that say so compute on the same ones."""

    def __init__(self, workers: Sequence[WorkerSnapshot]) -> None:
        self._groups: dict[str, list[WorkerSnapshot]] = defaultdict(list)
        for worker in workers:
            if worker.shares_processors:
                self._groups[worker.host_id].append(worker)

    def queue_ms(self, worker: WorkerSnapshot) -> float:
        """Return what prompts that wait for a worker's processors take, wherever they wait."""
        return sum(
            1000.0 * each.num_waiting_tokens / each.speeds.prefill_tokens_per_second
            for each in self._beside(worker)
        )

    def held_up_ms(self, worker: WorkerSnapshot, compute_ms: float) -> float:
        """Return how long sequences wait, in sum, for a prompt that `worker` computes."""
        return sum(
            cost_model.held_up_ms(each, compute_ms)
            for each in self._beside(worker)
            if each.role is WorkerRole.DECODE
        )

    def _beside(self, worker: WorkerSnapshot) -> Sequence[WorkerSnapshot]:
        return self._groups[worker.host_id] if worker.shares_processors else (worker,)


def by_each_others_speeds(workers: Sequence[WorkerSnapshot]) -> Sequence[WorkerSnapshot]:
    """Let those that have computed no prompt lately go by the fastest of those that have.

    By what it measured long ago, or by a prior, a worker that looks slow is never asked, and never
    found to be fast. One that was far slower, as another kind of device is, stays so.
    """
    lately = [worker.speeds.prefill_age_seconds <= LATELY_SECONDS for worker in workers]
    fastest = max(
        (
            worker.speeds.prefill_tokens_per_second
            for worker, is_fresh in zip(workers, lately, strict=True)
            if is_fresh and worker.is_ready
        ),
        default=0.0,
    )
    if not fastest:
        return workers
    return [
        worker if is_fresh else _as_fast_as(worker, fastest)
        for worker, is_fresh in zip(workers, lately, strict=True)
    ]


def _as_fast_as(worker: WorkerSnapshot, fastest: float) -> WorkerSnapshot:
    speeds = worker.speeds
    guess = fastest
    if speeds.prefill_age_seconds < math.inf:
        own = speeds.prefill_tokens_per_second
        guess = max(own, min(fastest, MOST_FASTER * own))
    return replace(worker, speeds=replace(speeds, prefill_tokens_per_second=guess))
