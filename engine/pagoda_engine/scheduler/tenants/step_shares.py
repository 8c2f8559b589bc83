"""How tenants share one step: whose sequences are in it, and how many tokens of whose prompts.

Knows what each could use and what it costs. Knows nothing of blocks, seats or queues.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pagoda_engine.scheduler.sequence import Flow
from pagoda_engine.scheduler.step_cost import StepCost

PREFILL_TURNS = 32
"""Turns, about, in which a whole step's prompt tokens are dealt out."""
MIN_TURN_TOKENS = 16
SLOWDOWN = 0.6
"""Of what the lightest flow would lose if N shared time alike: a step of two takes 1.6 times what
one of the lightest would, not twice. The rest is for what a line through step times misjudges."""
ROUNDING = 1e-9
"""Of sums of times, for which no work is refused."""


@dataclass(slots=True)
class Demand:
    """What a flow could use of one step.

    Attributes:
        weight: of its tenant.
        last_decode: the latest step that had a decode of it.
        last_prefill: the latest step that had tokens of its prompts.
        num_decodes: sequences that can decode.
        num_prefill_tokens: tokens of its prompts that could be computed.
        num_importing: sequences whose KV is on its way: they will decode in a moment.
        is_late: it has waited for others for longer than its share of time.
    """

    weight: float
    last_decode: int
    last_prefill: int
    num_decodes: int
    num_prefill_tokens: int
    num_importing: int = 0
    is_late: bool = False

    @property
    def last_step(self) -> int:
        """The latest step that had something of it."""
        return max(self.last_decode, self.last_prefill)

    @property
    def is_active(self) -> bool:
        """Whether a step has anything to do with it."""
        return bool(self.num_decodes or self.num_prefill_tokens or self.num_importing)


@dataclass(slots=True)
class Share:
    """What a flow gets of one step."""

    num_decodes: int = 0
    num_prefill_tokens: int = 0


def share_step(
    demands: Mapping[Flow, Demand],
    cost: StepCost,
    *,
    max_num_seqs: int,
    max_num_tokens: int,
) -> dict[Flow, Share]:
    """Deal out one step.

    With N flows of equal weight the step takes less than N times what it would take the lightest
    one alone, so that nobody is slowed down by more than the number of those it shares with. Within
    that, work goes in turns to who has the least of it for its weight: a light flow gets all that
    it can use, and what it leaves is the others'. Everybody who can use anything gets something,
    as long as there are rows and tokens; if there are not, those go first that were in a step
    longest ago. A flow's own turns go to its decodes or its prompts, whichever have had less of the
    step, and the first of them to those that were in a step longest ago.

    While a flow is late, others have about one turn each in a step, and what it can use itself goes
    before more of theirs.

    Args:
        demands: of all flows.
        cost: of steps.
        max_num_seqs: decodes in a step at most.
        max_num_tokens: decodes and prompt tokens in a step at most.
    """
    active, num_decodes, num_prefill_tokens = list[Flow](), 0, 0
    for flow, demand in demands.items():
        if demand.is_active:
            active.append(flow)
            num_decodes += demand.num_decodes
            num_prefill_tokens += demand.num_prefill_tokens
    room = _work_limit([demands[flow] for flow in active], cost, max_num_seqs, max_num_tokens)
    if (
        num_decodes <= max_num_seqs
        and num_decodes + num_prefill_tokens <= max_num_tokens
        and cost.work(num_decodes, num_prefill_tokens) <= room
    ):  # most steps are so: whatever the turns, everybody gets all
        return {
            flow: Share(demand.num_decodes, demand.num_prefill_tokens)
            for flow, demand in demands.items()
        }
    if not num_prefill_tokens:
        num_rows = min(max_num_seqs, max_num_tokens)
        return deal_decodes(demands, active, cost.per_decode, room=room, num_rows=num_rows)
    return deal(demands, active, cost, room=room, num_rows=max_num_seqs, num_tokens=max_num_tokens)


_Turn = tuple[bool, float, bool, int, int]
"""Of a flow, the least first: it is not its first one and the flow is not late, what it had for its
weight, it is in the background, the latest step that it was in, its number."""


def _first_turns(demands: Mapping[Flow, Demand], active: Sequence[Flow]) -> list[_Turn]:
    """Return a heap of a turn for each flow."""
    turns = [
        (False, 0.0, flow.is_background, demands[flow].last_step, index)
        for index, flow in enumerate(active)
    ]
    heapq.heapify(turns)
    return turns


def deal(
    demands: Mapping[Flow, Demand],
    active: Sequence[Flow],
    cost: StepCost,
    *,
    room: float,
    num_rows: int,
    num_tokens: int,
) -> dict[Flow, Share]:
    """Deal a step out in turns; see `share_step`.

    Args:
        demands: of all flows.
        active: those of them that could use anything.
        cost: of steps.
        room: by how much the step may be longer than an empty one.
        num_rows: decodes at most.
        num_tokens: decodes and prompt tokens at most.
    """
    turn_tokens = max(MIN_TURN_TOKENS, num_tokens // PREFILL_TURNS)
    dealing = _Dealing(cost, room, num_rows, num_tokens, turn_tokens)
    shares = {flow: Share() for flow in demands}
    turns = _first_turns(demands, active)
    while turns and dealing.num_tokens:
        _, used, is_background, last_step, index = turns[0]
        flow = active[index]
        demand = demands[flow]
        work = dealing.turn(demand, shares[flow])
        if work is None:
            heapq.heappop(turns)
        else:
            used += max(work, ROUNDING) / demand.weight
            # Behind everybody's first turn; the late ones' next turns, then others'.
            heapq.heapreplace(turns, (not demand.is_late, used, is_background, last_step, index))
    return shares


def deal_decodes(
    demands: Mapping[Flow, Demand],
    active: Sequence[Flow],
    work: float,
    *,
    room: float,
    num_rows: int,
) -> dict[Flow, Share]:
    """Return what `deal` does where nobody has prompt tokens, in less than half of the time.

    Each turn is of one decode, so of `work`.
    """
    shares = {flow: Share() for flow in demands}
    turns, room = _first_turns(demands, active), room + ROUNDING
    while turns and num_rows:
        _, used, is_background, last_step, index = turns[0]
        flow = active[index]
        demand, share = demands[flow], shares[flow]
        num_decodes = share.num_decodes
        if num_decodes >= demand.num_decodes or (work > room and num_decodes):
            heapq.heappop(turns)
            continue
        share.num_decodes = num_decodes + 1
        room -= work
        num_rows -= 1
        used += max(work, ROUNDING) / demand.weight
        heapq.heapreplace(turns, (not demand.is_late, used, is_background, last_step, index))
    return shares


def unclaimed_work(
    demands: Mapping[Flow, Demand],
    shares: Mapping[Flow, Share],
    cost: StepCost,
    *,
    max_num_seqs: int,
    max_num_tokens: int,
) -> float:
    """Return what a step that was dealt out may still be longer by, though nobody claims it."""
    active = [demand for demand in demands.values() if demand.is_active]
    used = sum(cost.work(s.num_decodes, s.num_prefill_tokens) for s in shares.values())
    return max(0.0, _work_limit(active, cost, max_num_seqs, max_num_tokens) - used)


@dataclass(slots=True)
class _Dealing:
    """A step that is being dealt out: what is left of it."""

    cost: StepCost
    room: float
    num_rows: int
    num_tokens: int
    turn_tokens: int

    def turn(self, demand: Demand, share: Share) -> float | None:
        """Add to a flow's share; return what that costs, None if it gets nothing more."""
        per_token = self.cost.per_prefill_token
        num_tokens = min(
            demand.num_prefill_tokens - share.num_prefill_tokens, self.turn_tokens, self.num_tokens
        )
        is_first = not (share.num_decodes or share.num_prefill_tokens)
        if not is_first and num_tokens * per_token > max(0.0, self.room):
            num_tokens = max(0, int((self.room + ROUNDING) / per_token))
        is_decode = share.num_decodes < demand.num_decodes and self.num_rows > 0
        if is_decode and num_tokens:
            ahead = share.num_decodes * self.cost.per_decode - share.num_prefill_tokens * per_token
            is_decode = ahead < 0 or (ahead == 0 and demand.last_decode <= demand.last_prefill)
        if is_decode:
            num_tokens = 1
        elif not num_tokens:
            return None
        work = self.cost.per_decode if is_decode else per_token * num_tokens
        if work > self.room + ROUNDING and not is_first:
            return None
        self.room -= work
        self.num_tokens -= num_tokens
        if is_decode:
            share.num_decodes += 1
            self.num_rows -= 1
        else:
            share.num_prefill_tokens += num_tokens
        return work


def _work_limit(
    active: Sequence[Demand], cost: StepCost, max_num_seqs: int, max_num_tokens: int
) -> float:
    """Return what a step may be longer by than an empty one; infinite for a single flow."""
    if len(active) < 2:
        return math.inf
    weights, least = total_weight(active), math.inf
    for demand in active:
        num_decodes = min(demand.num_decodes or min(1, demand.num_importing), max_num_seqs)
        num_prompt_tokens = min(demand.num_prefill_tokens, max_num_tokens - num_decodes)
        limit = cost.base + cost.work(num_decodes, num_prompt_tokens)  # alone
        if demand.is_late:
            limit += (len(active) - 1) * cost.per_decode
        else:
            limit *= slowdown(demand, weights)
        least = min(least, limit)
    return least - cost.base


def total_weight(demands: Iterable[Demand]) -> float:
    """Return what flows weigh together."""
    return sum([demand.weight for demand in demands])


def slowdown(demand: Demand, weights: float) -> float:
    """Return how many times as long as alone a flow's steps may take beside others.

    `weights` are those of all flows together, this one included.
    """
    return 1 + SLOWDOWN * (weights / demand.weight - 1)
