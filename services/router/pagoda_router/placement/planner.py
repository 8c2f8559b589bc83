"""Compares every plan for one sequence and takes the one with the least predicted cost.

A plan is a decode worker with a prefill worker, or with none: then it prefills by itself. Pure:
knows workers, load and prefix hits; knows neither Redis nor the network.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pagoda_router.placement import cost_model
from pagoda_router.placement.candidate import (
    MAX_CANDIDATES,
    Candidate,
    Comparison,
    PrefixMatch,
    RouteOutcome,
    RoutingRequest,
)
from pagoda_router.placement.cost_model import DecodeCost, PrefillCost
from pagoda_router.placement.eligibility import Eligibility, assess_load, assess_worker
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot

# The best of each side are paired: 8 x 8 plans are all that a comparison lists.
_MAX_PER_SIDE = 8
_MIN_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """What the planner may do and how it counts."""

    local_prefill: Literal["off", "auto"]
    expected_output_tokens: int
    fetch_base_ms: float
    load_factor: float
    min_load_bound: int


@dataclass(frozen=True, slots=True)
class _DecodeSide:
    worker: WorkerSnapshot
    eligibility: Eligibility
    cost: DecodeCost
    local_cost: PrefillCost
    num_device_blocks: int


@dataclass(frozen=True, slots=True)
class _PrefillSide:
    worker: WorkerSnapshot
    eligibility: Eligibility
    cost: PrefillCost


@dataclass(frozen=True, slots=True)
class _Plan:
    candidate: Candidate
    eligibility: Eligibility
    decode: WorkerSnapshot
    prefill: WorkerSnapshot | None


def compare(
    request: RoutingRequest,
    workers: Sequence[WorkerSnapshot],
    matches: Mapping[str, PrefixMatch],
    settings: PlacementSettings,
) -> Comparison:
    """Compare every allowed plan.

    Args:
        request: the sequence to place.
        workers: those alive, pending load included; other models' and kvstores are passed over.
        matches: prefix hits by worker id; a worker without an entry has none.
        settings: what is allowed.
    """
    serving = [worker for worker in workers if worker.model == request.model]
    assessed = [(worker, assess_worker(worker, request)) for worker in serving]
    planning = _Planning(request, matches, settings)
    decodes = [
        planning.decode_side(worker, eligibility)
        for worker, eligibility in planning.usable(assessed, WorkerRole.DECODE)
    ]
    prefills = [
        _PrefillSide(worker, eligibility, planning.prefill_cost(worker))
        for worker, eligibility in planning.usable(assessed, WorkerRole.PREFILL)
    ]
    plans = planning.plans(decodes, prefills)
    plans.sort(key=lambda plan: _order(plan, request))
    ruled_out = [
        _ruled_out(worker, eligibility) for worker, eligibility in assessed if eligibility.is_final
    ]
    return _conclude(request, plans, ruled_out)


@dataclass(frozen=True, slots=True)
class _Planning:
    """One request's plans in the making."""

    request: RoutingRequest
    matches: Mapping[str, PrefixMatch]
    settings: PlacementSettings

    @property
    def num_output_tokens(self) -> int:
        return max(1, min(self.request.max_tokens, self.settings.expected_output_tokens))

    def match(self, worker: WorkerSnapshot) -> PrefixMatch:
        return self.matches.get(worker.worker_id, PrefixMatch())

    def usable(
        self, assessed: Sequence[tuple[WorkerSnapshot, Eligibility]], role: WorkerRole
    ) -> list[tuple[WorkerSnapshot, Eligibility]]:
        return assess_load(
            [
                (worker, eligibility)
                for worker, eligibility in assessed
                if worker.role is role and not eligibility.is_final
            ],
            load_factor=self.settings.load_factor,
            min_load_bound=self.settings.min_load_bound,
        )

    def prefill_cost(self, worker: WorkerSnapshot) -> PrefillCost:
        match = self.match(worker)
        return cost_model.prefill_cost(
            worker,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_device_blocks=match.num_device_blocks,
            num_kvstore_blocks=match.num_kvstore_blocks,
            fetch_base_ms=self.settings.fetch_base_ms,
        )

    def decode_side(self, worker: WorkerSnapshot, eligibility: Eligibility) -> _DecodeSide:
        cost = cost_model.decode_cost(
            worker,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
        )
        num_device_blocks = self.match(worker).num_device_blocks
        return _DecodeSide(worker, eligibility, cost, self.prefill_cost(worker), num_device_blocks)

    def plans(
        self, decodes: Sequence[_DecodeSide], prefills: Sequence[_PrefillSide]
    ) -> list[_Plan]:
        num_output_tokens = self.num_output_tokens
        has_local = self.settings.local_prefill == "auto" or not prefills
        best_prefills = sorted(
            prefills, key=lambda side: (side.eligibility.rank, side.cost.total_ms)
        )
        best_decodes = sorted(
            decodes,
            key=lambda side: (
                side.eligibility.rank,
                side.cost.queue_ms + num_output_tokens * side.cost.tpot_ms,
            ),
        )
        plans: list[_Plan] = []
        for decode in best_decodes[:_MAX_PER_SIDE]:
            if has_local:
                plans.append(_plan(decode, None, decode.local_cost, 0.0, num_output_tokens))
            for prefill in best_prefills[:_MAX_PER_SIDE]:
                transfer_ms = cost_model.transfer_ms(
                    prefill.worker,
                    decode.worker,
                    num_prompt_tokens=self.request.num_prompt_tokens,
                    num_consumer_blocks=decode.num_device_blocks,
                )
                plans.append(_plan(decode, prefill, prefill.cost, transfer_ms, num_output_tokens))
        return plans


def _plan(
    decode: _DecodeSide,
    prefill: _PrefillSide | None,
    cost: PrefillCost,
    transfer_ms: float,
    num_output_tokens: int,
) -> _Plan:
    eligibility = decode.eligibility
    if prefill is not None and prefill.eligibility.rank > eligibility.rank:
        eligibility = prefill.eligibility
    queue_ms = decode.cost.queue_ms + cost.queue_ms
    ttft_ms = queue_ms + cost.fetch_ms + cost.compute_ms + transfer_ms
    candidate = Candidate(
        decode_worker_id=decode.worker.worker_id,
        prefill_worker_id=prefill.worker.worker_id if prefill else "",
        num_fetch_blocks=cost.num_fetch_blocks,
        num_device_blocks=cost.num_device_blocks,
        num_miss_tokens=cost.num_miss_tokens,
        queue_ms=queue_ms,
        fetch_ms=cost.fetch_ms,
        compute_ms=cost.compute_ms,
        transfer_ms=transfer_ms,
        tpot_ms=decode.cost.tpot_ms,
        cost_ms=ttft_ms + num_output_tokens * decode.cost.tpot_ms,
        reason=eligibility.reason,
    )
    return _Plan(candidate, eligibility, decode.worker, prefill.worker if prefill else None)


def _order(plan: _Plan, request: RoutingRequest) -> tuple[int, float, bytes]:
    """Allowed plans first, then by cost; equal costs in an order that is the prompt's own.

    So among idle workers equal beginnings go to the same one, with no index at all.
    """
    candidate = plan.candidate
    prefix = request.block_hashes[0] if request.block_hashes else request.request_id.encode()
    names = f"|{candidate.decode_worker_id}|{candidate.prefill_worker_id}".encode()
    draw = hashlib.blake2b(prefix + names, digest_size=8).digest()
    return plan.eligibility.rank, round(candidate.cost_ms, 3), draw


def _ruled_out(worker: WorkerSnapshot, eligibility: Eligibility) -> Candidate:
    if worker.role is WorkerRole.PREFILL:
        return Candidate(prefill_worker_id=worker.worker_id, reason=eligibility.reason)
    return Candidate(decode_worker_id=worker.worker_id, reason=eligibility.reason)


def _conclude(
    request: RoutingRequest, plans: Sequence[_Plan], ruled_out: Sequence[Candidate]
) -> Comparison:
    candidates = (*(plan.candidate for plan in plans), *ruled_out)[:MAX_CANDIDATES]
    if not plans:
        message = f"no worker can run model {request.model!r}"
        if not ruled_out:
            message += ": none is alive"
        else:
            message += ": " + "; ".join(
                f"{c.decode_worker_id or c.prefill_worker_id}: {c.reason}" for c in ruled_out[:8]
            )
        return Comparison(RouteOutcome.NO_WORKER, candidates, message)
    best = plans[0]
    if best.eligibility.is_overload:
        seconds = min(plan.candidate.queue_ms for plan in plans) / 1000.0
        seconds = min(_MAX_RETRY_SECONDS, max(_MIN_RETRY_SECONDS, seconds))
        message = f"every worker's queue is full; least: {best.candidate.reason}"
        return Comparison(RouteOutcome.OVERLOADED, candidates, message, seconds)
    return Comparison(RouteOutcome.PLACED, candidates, decode=best.decode, prefill=best.prefill)
