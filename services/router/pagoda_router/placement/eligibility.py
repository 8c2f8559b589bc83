"""Which workers may take a sequence at all, and which have more than their share already."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_router.placement.candidate import RoutingRequest
from pagoda_router.workers.snapshot import WorkerSnapshot


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Whether a worker may be chosen; plans with a lower rank come first."""

    rank: int  # 0 allowed, 1 over its share: only if nobody else is left, 2 queue full, 3 never
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it can never run this sequence."""
        return self.rank == 3

    @property
    def is_overload(self) -> bool:
        """Whether only its queue is in the way."""
        return self.rank == 2


ALLOWED = Eligibility(0)


def assess_worker(worker: WorkerSnapshot, request: RoutingRequest) -> Eligibility:
    """Assess a worker by itself."""
    if worker.worker_id in request.excluded_worker_ids:
        return Eligibility(3, "failed this request before")
    if not worker.is_ready:
        return Eligibility(3, "draining")
    if worker.kv_identity != request.kv_identity:
        return Eligibility(3, f"kv_identity {worker.kv_identity.hex()} differs from the request's")
    if worker.block_size <= 0:
        return Eligibility(3, f"reports a block_size of {worker.block_size}")
    num_tokens = request.num_prompt_tokens + 1
    if 0 < worker.max_model_len < num_tokens:
        return Eligibility(
            3, f"max_model_len is {worker.max_model_len}, the prompt needs {num_tokens}"
        )
    if 0 < worker.num_blocks * worker.block_size < num_tokens:
        num_slots = worker.num_blocks * worker.block_size
        return Eligibility(
            3, f"its KV pool holds {num_slots} tokens, the prompt needs {num_tokens}"
        )
    if worker.is_queue_full:
        return Eligibility(
            2, f"queue full: {worker.num_waiting} of {worker.max_num_waiting} waiting"
        )
    return ALLOWED


def assess_load(
    assessed: Sequence[tuple[WorkerSnapshot, Eligibility]],
    *,
    load_factor: float,
    min_load_bound: int,
) -> list[tuple[WorkerSnapshot, Eligibility]]:
    """Rank workers of one role behind the others that have more than their share of sequences.

    The share follows `max_num_seqs`. So a hot prefix spreads however cheap its home looks.
    """
    allowed = [worker for worker, eligibility in assessed if eligibility.rank == 0]
    num_sequences = 1 + sum(worker.num_sequences for worker in allowed)
    capacity = sum(max(1, worker.max_num_seqs) for worker in allowed)
    result = []
    for worker, eligibility in assessed:
        if eligibility.rank == 0:
            share = num_sequences * max(1, worker.max_num_seqs) / capacity
            bound = max(min_load_bound, math.ceil(load_factor * share))
            if worker.num_sequences + 1 > bound:
                reason = f"over its share: {worker.num_sequences} sequences, bound {bound}"
                eligibility = Eligibility(1, reason)
        result.append((worker, eligibility))
    return result
