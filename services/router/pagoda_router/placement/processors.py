"""What workers compute on, as far as plans must know: who shares it, what waits for it, how fast.

Knows no request and no prefix.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pagoda_router.placement import cost_model
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot


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
    found to be fast.
    """
    fresh = [
        worker.speeds.prefill_tokens_per_second
        for worker in workers
        if worker.speeds.has_prefilled_lately and worker.is_ready
    ]
    if not fresh or len(fresh) == len(workers):
        return workers
    fastest = max(fresh)
    return [
        worker
        if worker.speeds.has_prefilled_lately
        else replace(worker, speeds=replace(worker.speeds, prefill_tokens_per_second=fastest))
        for worker in workers
    ]
