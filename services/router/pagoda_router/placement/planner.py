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
from pagoda_router.placement.eligibility import Verdict, judge_load, judge_worker
from pagoda_router.workers.worker import Worker, WorkerRole

# The best of each side are paired: 8 x 8 plans are all that a comparison lists.
_MAX_PER_SIDE = 8
_MIN_RETRY_SECONDS = 1.0
_MAX_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the planner may do and how it counts."""

    local_prefill: Literal["off", "auto"]
    expected_output_tokens: int
    fetch_base_ms: float
    load_factor: float
    min_load_bound: int


@dataclass(frozen=True, slots=True)
class _DecodeSide:
    worker: Worker
    verdict: Verdict
    cost: DecodeCost
    local_cost: PrefillCost
    num_device_blocks: int


@dataclass(frozen=True, slots=True)
class _PrefillSide:
    worker: Worker
    verdict: Verdict
    cost: PrefillCost


@dataclass(frozen=True, slots=True)
class _Plan:
    candidate: Candidate
    verdict: Verdict
    decode: Worker
    prefill: Worker | None


def compare(
    request: RoutingRequest,
    workers: Sequence[Worker],
    matches: Mapping[str, PrefixMatch],
    policy: Policy,
) -> Comparison:
    """Compare every allowed plan.

    Args:
        request: the sequence to place.
        workers: those alive, in-flight load included; other models' and kvstores are passed over.
        matches: prefix hits by worker id; a worker without an entry has none.
        policy: what is allowed.
    """
    serving = [worker for worker in workers if worker.model == request.model]
    verdicts = {worker.worker_id: judge_worker(worker, request) for worker in serving}
    usable = [worker for worker in serving if not verdicts[worker.worker_id].is_final]
    decodes = _judged(usable, verdicts, WorkerRole.DECODE, policy)
    prefills = _judged(usable, verdicts, WorkerRole.PREFILL, policy)
    decode_sides = [_decode_side(request, d, v, matches, policy) for d, v in decodes]
    prefill_sides = [_prefill_side(request, p, v, matches, policy) for p, v in prefills]
    plans = _make_plans(request, decode_sides, prefill_sides, policy)
    plans.sort(key=lambda plan: _order(plan, request))
    ruled_out = [
        _ruled_out(worker, verdicts[worker.worker_id])
        for worker in serving
        if verdicts[worker.worker_id].is_final
    ]
    return _conclude(request, plans, ruled_out)


def _judged(
    usable: Sequence[Worker], verdicts: Mapping[str, Verdict], role: WorkerRole, policy: Policy
) -> list[tuple[Worker, Verdict]]:
    of_role = [worker for worker in usable if worker.role is role]
    return judge_load(
        [(worker, verdicts[worker.worker_id]) for worker in of_role],
        load_factor=policy.load_factor,
        min_load_bound=policy.min_load_bound,
    )


def _num_output_tokens(request: RoutingRequest, policy: Policy) -> int:
    return max(1, min(request.max_tokens, policy.expected_output_tokens))


def _prefill_cost(
    request: RoutingRequest, worker: Worker, matches: Mapping[str, PrefixMatch], policy: Policy
) -> PrefillCost:
    match = matches.get(worker.worker_id, PrefixMatch())
    return cost_model.prefill_cost(
        worker,
        num_prompt_tokens=request.num_prompt_tokens,
        num_device_blocks=match.num_device_blocks,
        num_kvstore_blocks=match.num_kvstore_blocks,
        fetch_base_ms=policy.fetch_base_ms,
    )


def _decode_side(
    request: RoutingRequest,
    worker: Worker,
    verdict: Verdict,
    matches: Mapping[str, PrefixMatch],
    policy: Policy,
) -> _DecodeSide:
    cost = cost_model.decode_cost(
        worker,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=_num_output_tokens(request, policy),
    )
    local_cost = _prefill_cost(request, worker, matches, policy)
    match = matches.get(worker.worker_id, PrefixMatch())
    return _DecodeSide(worker, verdict, cost, local_cost, match.num_device_blocks)


def _prefill_side(
    request: RoutingRequest,
    worker: Worker,
    verdict: Verdict,
    matches: Mapping[str, PrefixMatch],
    policy: Policy,
) -> _PrefillSide:
    return _PrefillSide(worker, verdict, _prefill_cost(request, worker, matches, policy))


def _make_plans(
    request: RoutingRequest,
    decodes: Sequence[_DecodeSide],
    prefills: Sequence[_PrefillSide],
    policy: Policy,
) -> list[_Plan]:
    num_output_tokens = _num_output_tokens(request, policy)
    has_local = policy.local_prefill == "auto" or not prefills
    best_prefills = sorted(prefills, key=lambda side: (side.verdict.rank, side.cost.total_ms))
    best_decodes = sorted(
        decodes,
        key=lambda side: (
            side.verdict.rank,
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
                num_prompt_tokens=request.num_prompt_tokens,
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
    verdict = decode.verdict
    if prefill is not None and prefill.verdict.rank > verdict.rank:
        verdict = prefill.verdict
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
        reason=verdict.reason,
    )
    return _Plan(candidate, verdict, decode.worker, prefill.worker if prefill else None)


def _order(plan: _Plan, request: RoutingRequest) -> tuple[int, float, bytes]:
    """Allowed plans first, then by cost; equal costs in an order that is the prompt's own.

    So an idle fleet gives equal beginnings to equal workers, with no index at all.
    """
    candidate = plan.candidate
    prefix = request.block_hashes[0] if request.block_hashes else request.request_id.encode()
    names = f"|{candidate.decode_worker_id}|{candidate.prefill_worker_id}".encode()
    draw = hashlib.blake2b(prefix + names, digest_size=8).digest()
    return plan.verdict.rank, round(candidate.cost_ms, 3), draw


def _ruled_out(worker: Worker, verdict: Verdict) -> Candidate:
    if worker.role is WorkerRole.PREFILL:
        return Candidate(prefill_worker_id=worker.worker_id, reason=verdict.reason)
    return Candidate(decode_worker_id=worker.worker_id, reason=verdict.reason)


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
    if best.verdict.is_overload:
        seconds = min(plan.candidate.queue_ms for plan in plans) / 1000.0
        seconds = min(_MAX_RETRY_SECONDS, max(_MIN_RETRY_SECONDS, seconds))
        message = f"every worker's queue is full; least: {best.candidate.reason}"
        return Comparison(RouteOutcome.OVERLOADED, candidates, message, seconds)
    return Comparison(RouteOutcome.PLACED, candidates, decode=best.decode, prefill=best.prefill)
