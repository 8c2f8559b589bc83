"""Who should get what of a step that tenants share, in turns: plain counters, nothing sorted ahead.

Written from what `share_step` and `Lateness` promise. It knows numbers of flows and no sequences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from pagoda_engine import StepCost
from pagoda_engine.scheduler.tenants.lateness import MAX_LATE
from pagoda_engine.scheduler.tenants.step_shares import (
    MIN_TURN_TOKENS,
    PREFILL_TURNS,
    ROUNDING,
    SLOWDOWN,
)

FlowKey = tuple[bool, bytes]
"""Whether it is in the background, and its tenant."""


@dataclass
class NaiveFlow:
    """A tenant's sequences, as numbers.

    Attributes:
        weight: of its tenant.
        last_decode: number of the latest step with a decode of it.
        last_prefill: number of the latest step with tokens of its prompts.
        late: steps of a single decode that it has waited too long.
        decodes: that it could have in the step that is planned.
        prompt_tokens: that it could have in it.
        rows: decodes that it gets.
        tokens: of prompts that it gets.
    """

    weight: float
    last_decode: int = 0
    last_prefill: int = 0
    late: float = 0.0
    decodes: int = 0
    prompt_tokens: int = 0
    rows: int = 0
    tokens: int = 0

    def work(self, cost: StepCost) -> float:
        """Return what it has had of the step."""
        return cost.per_decode * self.rows + cost.per_prefill_token * self.tokens

    def slowdown(self, total: float) -> float:
        """Return how many times as long as alone its steps may take; `total` weights are here."""
        return 1 + SLOWDOWN * (total / self.weight - 1)


def deal(
    flows: Mapping[FlowKey, NaiveFlow], cost: StepCost, *, max_rows: int, max_tokens: int
) -> None:
    """Set what each flow gets."""
    here = {key: flow for key, flow in flows.items() if flow.decodes or flow.prompt_tokens}
    for flow in flows.values():
        flow.rows = flow.tokens = 0
    room = _room(list(here.values()), cost, max_rows, max_tokens)
    wanted = [(flow.decodes, flow.prompt_tokens) for flow in here.values()]
    rows, tokens = (sum(column) for column in zip(*wanted, strict=True)) if wanted else (0, 0)
    fits = rows <= max_rows and rows + tokens <= max_tokens and cost.work(rows, tokens) <= room
    if fits:
        for flow in here.values():
            flow.rows, flow.tokens = flow.decodes, flow.prompt_tokens
        return
    used = dict.fromkeys(here, 0.0)
    turns = dict.fromkeys(here, 0)
    done = set[FlowKey]()
    rows_left, tokens_left = max_rows, max_tokens
    order = list(here)
    while tokens_left and (left := [key for key in order if key not in done]):
        key = min(
            left,
            key=lambda k: (
                turns[k] > 0 and not here[k].late > 0,
                used[k],
                k[0],
                max(here[k].last_decode, here[k].last_prefill),
                order.index(k),
            ),
        )
        flow = here[key]
        row, num_tokens = _turn(flow, cost, room, rows_left, tokens_left, max_tokens)
        work = cost.per_decode * row + cost.per_prefill_token * num_tokens
        is_first = not (flow.rows or flow.tokens)
        if not (row or num_tokens) or (work > room + ROUNDING and not is_first):
            done.add(key)
            continue
        flow.rows += row
        flow.tokens += num_tokens
        room -= work
        rows_left -= row
        tokens_left -= row + num_tokens
        used[key] += max(work, ROUNDING) / flow.weight
        turns[key] += 1


def _turn(
    flow: NaiveFlow, cost: StepCost, room: float, rows_left: int, tokens_left: int, max_tokens: int
) -> tuple[int, int]:
    """Return a decode, or tokens of a prompt: of what it has had less of, or longer ago."""
    per_turn = max(MIN_TURN_TOKENS, max_tokens // PREFILL_TURNS)
    num_tokens = min(flow.prompt_tokens - flow.tokens, per_turn, tokens_left)
    if flow.rows or flow.tokens:  # its first turn may be longer than there is room
        fitting = [n for n in range(num_tokens + 1) if n * cost.per_prefill_token <= max(0, room)]
        num_tokens = max(fitting)
    has_decode = flow.decodes > flow.rows and rows_left
    if not has_decode:
        return 0, num_tokens
    if not num_tokens:
        return 1, 0
    decoded, prefilled = cost.per_decode * flow.rows, cost.per_prefill_token * flow.tokens
    if decoded == prefilled:
        return (1, 0) if flow.last_decode <= flow.last_prefill else (0, num_tokens)
    return (1, 0) if decoded < prefilled else (0, num_tokens)


def _room(here: list[NaiveFlow], cost: StepCost, max_rows: int, max_tokens: int) -> float:
    """Return by how much a step may be longer than an empty one: nobody is slowed down too much."""
    if len(here) < 2:
        return inf
    total = sum(flow.weight for flow in here)
    longest = []
    for flow in here:
        rows = min(flow.decodes, max_rows)
        tokens = min(flow.prompt_tokens, max_tokens - rows)
        alone = cost.of(num_decodes=rows, num_prefill_tokens=tokens)
        slow = alone * flow.slowdown(total)
        longest.append(alone + (len(here) - 1) * cost.per_decode if flow.late > 0 else slow)
    return min(longest) - cost.base


def note_lateness(
    flows: Mapping[FlowKey, NaiveFlow], had: Mapping[FlowKey, tuple[int, int]], cost: StepCost
) -> None:
    """Count who waited for longer than its share of a step, in which flows `had` so much."""
    total = sum(flow.weight for flow in flows.values() if flow.decodes or flow.prompt_tokens)
    took = took_of(had.values(), cost)
    for key, flow in flows.items():
        if flow.decodes or flow.prompt_tokens:
            alone = took_of([had[key]], cost) if key in had else 0.0
            make_late(key, flow, took - flow.slowdown(total) * alone, cost)


def make_late(key: FlowKey, flow: NaiveFlow, seconds: float, cost: StepCost) -> None:
    """Make a flow later, unless it is in the background; nobody is ever early."""
    if not key[0]:
        late = flow.late + seconds / (cost.base + cost.per_decode)
        flow.late = min(MAX_LATE, max(0.0, late))


def took_of(had: Iterable[tuple[int, int]], cost: StepCost) -> float:
    """Return the time of a step with so many decodes, and tokens of prompts, of each flow."""
    had = list(had)
    decodes, tokens = sum(rows for rows, _ in had), sum(number for _, number in had)
    return cost.of(num_decodes=decodes, num_prefill_tokens=tokens)
