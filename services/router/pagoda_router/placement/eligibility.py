"""Which workers may take a sequence at all, and which have more than their share already."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from pagoda_router.placement.candidate import RoutingRequest
from pagoda_router.workers.snapshot import WorkerSnapshot


class Rank(IntEnum):
    """How far a worker is from being chosen; plans with a lower rank come first."""

    ALLOWED = 0
    OVER_SHARE = 1  # only if nobody else is left
    LIKELY_FULL = 2  # it may have finished more than we know; it refuses by itself what is too much
    QUEUE_FULL = 3
    NEVER = 4


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Whether a worker may be chosen, and why not."""

    rank: Rank
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it can never run this sequence."""
        return self.rank is Rank.NEVER

    @property
    def is_overload(self) -> bool:
        """Whether only its queue is in the way."""
        return self.rank is Rank.QUEUE_FULL


ALLOWED = Eligibility(Rank.ALLOWED)


def assess_worker(worker: WorkerSnapshot, request: RoutingRequest) -> Eligibility:
    """Assess a worker by itself."""
    if worker.worker_id in request.excluded_worker_ids:
        return _never("failed this request before")
    if not worker.is_ready:
        return _never("draining")
    if worker.kv_identity != request.kv_identity:
        return _never(f"kv_identity {worker.kv_identity.hex()} differs from the request's")
    if request.adapter and request.adapter not in worker.adapters:
        return _never(f"has no adapter {request.adapter.hex()}")
    if worker.block_size <= 0:
        return _never(f"reports a block_size of {worker.block_size}")
    num_tokens = request.num_prompt_tokens + 1
    if 0 < worker.max_model_len < num_tokens:
        return _never(f"max_model_len is {worker.max_model_len}, the prompt needs {num_tokens}")
    # Whoever knows its longest sequence has reckoned with its pool, which may lose parts of blocks.
    if not worker.max_model_len and 0 < worker.num_blocks * worker.block_size < num_tokens:
        num_slots = worker.num_blocks * worker.block_size
        return _never(f"its KV pool holds {num_slots} tokens, the prompt needs {num_tokens}")
    if worker.is_queue_full:
        return Eligibility(
            Rank.QUEUE_FULL, f"queue full: {worker.num_waiting} of {worker.max_num_waiting} waiting"
        )
    if worker.is_queue_full_by_now:
        assumed = worker.num_assumed_waiting
        return Eligibility(
            Rank.LIKELY_FULL,
            f"likely full: {worker.num_waiting - assumed} waiting at its heartbeat, {assumed} "
            f"placed since, of {worker.max_num_waiting}",
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
    allowed = [worker for worker, eligibility in assessed if eligibility.rank is Rank.ALLOWED]
    num_sequences = 1 + sum(worker.num_sequences for worker in allowed)
    capacity = sum(max(1, worker.max_num_seqs) for worker in allowed)
    result = []
    for worker, eligibility in assessed:
        if eligibility.rank is Rank.ALLOWED:
            share = num_sequences * max(1, worker.max_num_seqs) / capacity
            bound = max(min_load_bound, math.ceil(load_factor * share))
            if worker.num_sequences + 1 > bound:
                reason = f"over its share: {worker.num_sequences} sequences, bound {bound}"
                eligibility = Eligibility(Rank.OVER_SHARE, reason)
        result.append((worker, eligibility))
    return result


def _never(reason: str) -> Eligibility:
    return Eligibility(Rank.NEVER, reason)
