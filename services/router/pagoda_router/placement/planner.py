"""Compares plans for one sequence and takes the one with the least predicted cost.

A plan is a decode worker with a prefill worker, or with none: then it prefills by itself. Pure:
knows workers, load and prefix hits; knows neither Redis nor the network.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
from pagoda_router.placement.processors import Processors, by_each_others_speeds
from pagoda_router.placement.shortlist import draw, shortlist
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot

_MAX_RULED_OUT = 4
_NO_MATCH = PrefixMatch()
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


# Named tuples: one of each is made for every worker, and they are made in a third of the time.
class _DecodeSide(NamedTuple):
    worker: WorkerSnapshot
    eligibility: Eligibility
    cost: DecodeCost
    num_device_blocks: int
    own_ms: float  # of a plan, whoever prefills
    draw: bytes


class _PrefillSide(NamedTuple):
    worker: WorkerSnapshot
    eligibility: Eligibility
    cost: PrefillCost
    draw: bytes


class _Plan(NamedTuple):
    """A pair and what orders it; spelled out as a Candidate only if it is listed."""

    order: tuple[int, float, bytes, bytes]
    decode: _DecodeSide
    prefill: _PrefillSide | None
    cost: PrefillCost
    transfer_ms: float

    @property
    def eligibility(self) -> Eligibility:
        """Return the worse one of its workers'."""
        mine = self.decode.eligibility
        theirs = self.prefill.eligibility if self.prefill else mine
        return theirs if theirs.rank > mine.rank else mine


def compare(
    request: RoutingRequest,
    workers: Sequence[WorkerSnapshot],
    matches: Mapping[str, PrefixMatch],
    settings: PlacementSettings,
) -> Comparison:
    """Compare the plans that may be best, each by its full predicted cost.

    Args:
        request: the sequence to place.
        workers: those alive, pending load included; other models' and kvstores are passed over.
        matches: prefix hits by worker id; a worker without an entry has none.
        settings: what is allowed.
    """
    serving = by_each_others_speeds([w for w in workers if w.model == request.model])
    assessed = [(worker, assess_worker(worker, request)) for worker in serving]
    num_output_tokens = max(1, min(request.max_tokens, settings.expected_output_tokens))
    believed = {worker.worker_id: worker for worker in serving}
    processors = Processors([believed.get(worker.worker_id, worker) for worker in workers])
    planning = _Planning(request, matches, settings, num_output_tokens, processors)
    decodes = [
        planning.decode_side(worker, eligibility)
        for worker, eligibility in planning.usable(assessed, WorkerRole.DECODE)
    ]
    prefills = [
        planning.prefill_side(worker, eligibility)
        for worker, eligibility in planning.usable(assessed, WorkerRole.PREFILL)
    ]
    plans = heapq.nsmallest(
        MAX_CANDIDATES, planning.plans(decodes, prefills), key=lambda plan: plan.order
    )
    ruled_out = [
        _ruled_out(worker, eligibility) for worker, eligibility in assessed if eligibility.is_final
    ]
    return _conclude(planning, plans, ruled_out)


@dataclass(frozen=True, slots=True)
class _Planning:
    """One request's plans in the making."""

    request: RoutingRequest
    matches: Mapping[str, PrefixMatch]
    settings: PlacementSettings
    num_output_tokens: int  # expected
    processors: Processors

    @property
    def is_auto(self) -> bool:
        return self.settings.local_prefill == "auto"

    def match(self, worker: WorkerSnapshot) -> PrefixMatch:
        return self.matches.get(worker.worker_id, _NO_MATCH)

    def usable(
        self, assessed: Sequence[tuple[WorkerSnapshot, Eligibility]], role: WorkerRole
    ) -> list[tuple[WorkerSnapshot, Eligibility]]:
        possible = [
            (worker, eligibility)
            for worker, eligibility in assessed
            if worker.role is role and not eligibility.is_final
        ]
        groups = [possible]
        if role is WorkerRole.PREFILL and self.is_auto:
            # Those beside decodes idle, as they gain nothing: the others' share is no less for it.
            groups = [
                [entry for entry in possible if entry[0].shares_processors is is_shared]
                for is_shared in (False, True)
            ]
        return [
            entry
            for group in groups
            for entry in assess_load(
                group,
                load_factor=self.settings.load_factor,
                min_load_bound=self.settings.min_load_bound,
            )
        ]

    def prefill_cost(self, worker: WorkerSnapshot) -> PrefillCost:
        match = self.match(worker)
        cost = cost_model.prefill_cost(
            worker,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_device_blocks=match.num_device_blocks,
            num_kvstore_blocks=match.num_kvstore_blocks,
            fetch_base_ms=self.settings.fetch_base_ms,
        )
        if not self.is_auto:
            return cost
        return cost._replace(
            queue_ms=self.processors.queue_ms(worker),
            held_up_ms=self.processors.held_up_ms(worker, cost.compute_ms),
        )

    def prefill_side(self, worker: WorkerSnapshot, eligibility: Eligibility) -> _PrefillSide:
        place = draw(self.request.request_id, worker.worker_id)
        return _PrefillSide(worker, eligibility, self.prefill_cost(worker), place)

    def decode_side(self, worker: WorkerSnapshot, eligibility: Eligibility) -> _DecodeSide:
        cost = cost_model.decode_cost(
            worker,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
        )
        return _DecodeSide(
            worker,
            eligibility,
            cost,
            num_device_blocks=self.match(worker).num_device_blocks,
            own_ms=cost.queue_ms + self.num_output_tokens * cost.tpot_ms,
            draw=draw(self.request.request_id, worker.worker_id),
        )

    def plans(
        self, decodes: Sequence[_DecodeSide], prefills: Sequence[_PrefillSide]
    ) -> Iterator[_Plan]:
        """Yield one plan for each worker that may prefill by itself, and the pairs worth it."""
        if self.is_auto or not prefills:
            for decode in decodes:
                yield _plan(decode, None, self.prefill_cost(decode.worker), 0.0)
        if not prefills:
            return
        best_decodes = shortlist(
            decodes, lambda side: side.own_ms, lambda side: side.num_device_blocks
        )
        best_prefills = shortlist(
            prefills,
            lambda side: side.cost.total_ms + side.cost.held_up_ms,
            lambda side: side.worker.speeds.transfer_bytes_per_second,
            lambda side: side.cost.num_device_blocks,
        )
        for decode in best_decodes:
            for prefill in best_prefills:
                transfer_ms = cost_model.transfer_ms(
                    prefill.worker,
                    decode.worker,
                    num_prompt_tokens=self.request.num_prompt_tokens,
                    num_consumer_blocks=decode.num_device_blocks,
                )
                yield _plan(decode, prefill, prefill.cost, transfer_ms)


def _plan(
    decode: _DecodeSide, prefill: _PrefillSide | None, cost: PrefillCost, transfer_ms: float
) -> _Plan:
    """Allowed plans come first, then it is the cost; equal costs in the order of the draws."""
    rank = decode.eligibility.rank
    if prefill is not None:
        rank = max(rank, prefill.eligibility.rank)
    cost_ms = round(decode.own_ms + cost.total_ms + transfer_ms + cost.held_up_ms, 3)
    order = (rank, cost_ms, decode.draw, prefill.draw if prefill else b"")
    return _Plan(order, decode, prefill, cost, transfer_ms)


def _candidate(plan: _Plan, num_output_tokens: int) -> Candidate:
    decode, prefill, cost = plan.decode, plan.prefill, plan.cost
    queue_ms = decode.cost.queue_ms + cost.queue_ms
    ttft_ms = queue_ms + cost.fetch_ms + cost.compute_ms + plan.transfer_ms
    return Candidate(
        decode_worker_id=decode.worker.worker_id,
        prefill_worker_id=prefill.worker.worker_id if prefill else "",
        num_fetch_blocks=cost.num_fetch_blocks,
        num_device_blocks=cost.num_device_blocks,
        num_miss_tokens=cost.num_miss_tokens,
        queue_ms=queue_ms,
        fetch_ms=cost.fetch_ms,
        compute_ms=cost.compute_ms,
        transfer_ms=plan.transfer_ms,
        tpot_ms=decode.cost.tpot_ms,
        held_up_ms=cost.held_up_ms,
        cost_ms=ttft_ms + num_output_tokens * decode.cost.tpot_ms + cost.held_up_ms,
        reason=plan.eligibility.reason,
    )


def _ruled_out(worker: WorkerSnapshot, eligibility: Eligibility) -> Candidate:
    if worker.role is WorkerRole.PREFILL:
        return Candidate(prefill_worker_id=worker.worker_id, reason=eligibility.reason)
    return Candidate(decode_worker_id=worker.worker_id, reason=eligibility.reason)


def _conclude(
    planning: _Planning, plans: Sequence[_Plan], ruled_out: Sequence[Candidate]
) -> Comparison:
    """Return the outcome and what there is to say for it: room is kept for who was ruled out."""
    num_plans = MAX_CANDIDATES - min(len(ruled_out), _MAX_RULED_OUT)
    listed = [_candidate(plan, planning.num_output_tokens) for plan in plans[:num_plans]]
    candidates = (*listed, *ruled_out)[:MAX_CANDIDATES]
    if not plans:
        message = f"no worker can run model {planning.request.model!r}"
        if not ruled_out:
            message += ": none is alive"
        else:
            message += ": " + "; ".join(
                f"{c.decode_worker_id or c.prefill_worker_id}: {c.reason}" for c in ruled_out[:8]
            )
        return Comparison(RouteOutcome.NO_WORKER, candidates, message)
    best = plans[0]
    if best.eligibility.is_overload:
        seconds = min(candidate.queue_ms for candidate in listed) / 1000.0
        seconds = min(_MAX_RETRY_SECONDS, max(_MIN_RETRY_SECONDS, seconds))
        message = f"every worker's queue is full; least: {best.eligibility.reason}"
        return Comparison(RouteOutcome.OVERLOADED, candidates, message, seconds)
    prefill = best.prefill.worker if best.prefill else None
    return Comparison(RouteOutcome.PLACED, candidates, decode=best.decode.worker, prefill=prefill)
