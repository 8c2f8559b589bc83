"""What the scheduler should plan, step by step: plain counters, each counted again when asked for.

Written from what `Scheduler` promises and not from how it does it, for callers without imports,
prefix caching and speculation. It knows how many tokens and blocks a sequence has, and whose it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf

from pagoda_engine import EngineConfig, StepCost
from pagoda_engine.scheduler.admission import MAX_FORESEEN
from pagoda_engine.scheduler.step_plan import LONG_STEP, MIN_CHUNK
from support.naive_shares import FlowKey, NaiveFlow, deal, make_late, note_lateness, took_of

Plan = list[tuple[str, int]]


@dataclass(eq=False)
class NaiveSequence:
    """A sequence as numbers. It waits while it has no blocks."""

    name: str
    priority: int
    deadline: float
    arrival: int
    num_tokens: int  # known: prompt and output
    most_tokens: int  # that it can have in the end
    prefill_only: bool
    flow: FlowKey = (False, b"")
    num_computed: int = 0
    num_blocks: int = 0
    prefill_end: int = 0
    last_step: int = 0

    @property
    def rank(self) -> tuple[int, float, int]:
        return self.priority, self.deadline, self.arrival

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed < self.prefill_end


class NaiveScheduler:
    """Plans steps, and is told what came of them."""

    def __init__(self, config: EngineConfig, cost: StepCost) -> None:
        self.config, self.cost = config, cost
        self.sequences: dict[str, NaiveSequence] = {}
        self.flows: dict[FlowKey, NaiveFlow] = {}
        self.preempted: list[str] = []  # in the latest step
        self.num_shared = 0  # steps in which somebody got less than it could use
        self._had: dict[FlowKey, tuple[int, int]] = {}  # of the latest step that was of any
        self._closed: set[FlowKey] = set()
        self._budgets: dict[FlowKey, int] = {}
        self._step = 0

    def add(self, sequence: NaiveSequence, weight: float = 1.0) -> None:
        self.sequences[sequence.name] = sequence
        if sequence.flow in self.flows:
            return
        flow = self.flows[sequence.flow] = NaiveFlow(weight)
        if self._are_several and self._had:  # it waits for what runs
            make_late(sequence.flow, flow, took_of(self._had.values(), self.cost), self.cost)

    def finish(self, name: str) -> None:
        flow = self.sequences.pop(name).flow
        if not any(s.flow == flow for s in self.sequences.values()):
            del self.flows[flow]

    def sampled(self, name: str) -> None:
        """A step brought one more token of a sequence that goes on."""
        self.sequences[name].num_tokens += 1

    def plan(self) -> Plan:
        """Return who computes how many tokens, in order: decodes, then prompts."""
        self._step += 1
        self.preempted, self._closed = [], set()
        for giver in self._givers() if self._are_several else ():
            self._preempt(giver)
        prefills = [s for s in self._running() if s.is_prefilling]
        decodes = self._decodes(prefills)
        prefills = [s for s in prefills if s.num_blocks]
        if not self._are_several:
            room = self.config.max_num_batched_tokens - len(decodes)
            self._budgets = dict.fromkeys(self.flows, room)
        prompts: Plan = []
        may_admit = {s.flow for s, fits in self._firsts() if fits and prefills}
        for sequence in prefills:
            flow = sequence.flow
            while flow in may_admit and (first := self._admissible(flow, sequence.priority)):
                self._admit(first, len(decodes), prompts)
            self._prefill(sequence, len(decodes), prompts)
        while turn := next((s.flow for s, fits in self._firsts() if fits), None):
            if first := self._admissible(turn):
                self._admit(first, len(decodes), prompts)
            else:
                self._closed.add(turn)
        plan = [(sequence.name, 1) for sequence in decodes] + prompts
        self._note(plan, len(decodes))
        return plan

    def _note(self, plan: Plan, num_decodes: int) -> None:
        had: dict[FlowKey, tuple[int, int]] = {}
        for place, (name, num_tokens) in enumerate(plan):
            sequence = self.sequences[name]
            rows, tokens = had.get(sequence.flow, (0, 0))
            is_decode = place < num_decodes
            had[sequence.flow] = rows + is_decode, tokens + (0 if is_decode else num_tokens)
            sequence.num_computed += num_tokens
            sequence.last_step = self._step
        if not plan:
            return
        self._had = had
        if self._are_several:
            note_lateness(self.flows, had, self.cost)
        for flow in self.flows.values() if not self._are_several else ():
            flow.late = 0.0

    def _decodes(self, prefills: list[NaiveSequence]) -> list[NaiveSequence]:
        """Whose turn it is gets a token, and others' blocks for it if there are too few."""
        decodes = [s for s in self._running() if not s.is_prefilling]
        if self._are_several:
            decodes = self._share(decodes, prefills)
        for sequence in decodes:
            missing = self._blocks_for(sequence.num_tokens) > sequence.num_blocks
            while missing and sequence.num_blocks:
                if self._num_free():
                    sequence.num_blocks += 1
                    break
                self._preempt(self._who_gives_to_a_decode())
        decodes = [s for s in decodes if s.num_blocks]
        for sequence in decodes:
            self.flows[sequence.flow].last_decode = self._step
        return decodes

    def _share(
        self, decodes: list[NaiveSequence], prefills: list[NaiveSequence]
    ) -> list[NaiveSequence]:
        """Deal the step out; return the decodes whose turn it is, those that waited longest."""
        firsts = {s.flow for s, fits in self._firsts() if fits}
        for key, flow in self.flows.items():
            flow.decodes = sum(s.flow == key for s in decodes)
            flow.prompt_tokens = sum(
                s.prefill_end - s.num_computed for s in prefills if s.flow == key
            )
            for sequence in islice(self._line(key), MAX_FORESEEN) if key in firsts else ():
                flow.prompt_tokens += sequence.num_tokens
        deal(
            self.flows,
            self.cost,
            max_rows=self._num_seats,
            max_tokens=self.config.max_num_batched_tokens,
        )
        self._budgets = {key: flow.tokens for key, flow in self.flows.items()}
        chosen = set[NaiveSequence]()
        for key, flow in self.flows.items():
            self.num_shared += flow.rows < flow.decodes or flow.tokens < flow.prompt_tokens
            waited = sorted((s for s in decodes if s.flow == key), key=lambda s: s.last_step)
            chosen |= {*waited[: flow.rows]}
        return [s for s in decodes if s in chosen]

    def _givers(self) -> list[NaiveSequence]:
        """Return who makes room for whoever is first in line, of flows that hold more; or nobody.

        First those that give a seat, then those that give blocks, until all of it is there.
        """
        first, _ = next(self._firsts(needs_seat=False), (None, False))
        if first is None:
            return []
        given: list[NaiveSequence] = []
        while len(self._running()) - len(given) >= self._num_seats:
            if not (giver := self._giver(first, given, seats=1)):
                return []
            given.append(giver)
        while not self._fits(first, given):
            if not (giver := self._giver(first, given, blocks=self._blocks_for(first.num_tokens))):
                return []
            given.append(giver)
        return given

    def _giver(
        self, first: NaiveSequence, given: list[NaiveSequence], *, seats: int = 0, blocks: int = 0
    ) -> NaiveSequence | None:
        """Return the last one of the flow that holds the most, if more than `first`'s then does."""
        held = [s for s in self._running() if s not in given]

        def holds(flow: FlowKey, more: int = 0) -> tuple[bool, float]:
            number = sum(1 if seats else s.num_blocks for s in held if s.flow == flow)
            return flow[0], (number + more) / self.flows[flow].weight

        best: NaiveSequence | None = None
        for flow in dict.fromkeys(s.flow for s in held if not s.prefill_only):
            is_only_one = sum(s.flow == flow for s in held) == 1
            if is_only_one and not flow[0] > first.flow[0]:
                continue
            if (blocks and flow == first.flow) or holds(flow) <= holds(first.flow, seats + blocks):
                continue
            if best is None or holds(flow) > holds(best.flow):
                best = [s for s in held if s.flow == flow and not s.prefill_only][-1]
        return best

    def _who_gives_to_a_decode(self) -> NaiveSequence:
        """Return the last of the flow with most blocks; the youngest where each has one alone."""
        running = self._running()
        # Of those of whom nothing is on its way to another worker.
        last = {s.flow: s for s in running if not s.prefill_only}
        several = [flow for flow in last if sum(s.flow == flow for s in running) > 1]
        if not several:
            return max(last.values(), key=lambda s: (s.flow[0], s.arrival))
        return last[max(several, key=self._held_blocks)]

    def _preempt(self, victim: NaiveSequence) -> None:
        victim.num_blocks = victim.num_computed = victim.prefill_end = 0
        self.preempted.append(victim.name)
        self._closed.add(victim.flow)

    def _firsts(self, *, needs_seat: bool = True) -> Iterator[tuple[NaiveSequence, bool]]:
        """Yield who is first of each flow that waits, and whether it finds blocks.

        The flow with the fewest seats goes first. Whoever finds no blocks is not passed by flows
        that hold as many as its own.
        """
        if needs_seat and len(self._running()) >= self._num_seats:
            return
        waiting = [f for f in self.flows if f not in self._closed and any(self._line(f))]
        running = self._running()

        def turn(flow: FlowKey) -> tuple[tuple[bool, float], int]:
            state = self.flows[flow]
            seats = sum(s.flow == flow for s in running) / state.weight
            return (flow[0], seats), max(state.last_decode, state.last_prefill)

        least = (True, inf)
        for flow in sorted(waiting, key=turn):
            if self._are_several and self._held_blocks(flow) >= least:
                continue
            first = next(self._line(flow))
            fits = self._fits(first, [])
            if not fits:
                least = min(least, self._held_blocks(flow))
            yield first, fits

    def _fits(self, first: NaiveSequence, given: list[NaiveSequence]) -> bool:
        """Tell whether there are blocks for it, and for those who run, but for the given ones."""
        running = [s for s in self._running() if s not in given]
        spare = 0
        if running:
            spare = sum(map(self._may_grow, running)) + self.config.num_blocks // 100
        free = self._num_free() + sum(s.num_blocks for s in given)
        return free >= self._blocks_for(first.num_tokens) + spare

    def _admissible(self, flow: FlowKey, before: float = inf) -> NaiveSequence | None:
        """Return a flow's first in line, if there are a seat, tokens and blocks for it."""
        first = next(self._line(flow), None)
        if first is None or first.priority >= before or not self._budgets[flow]:
            return None
        has_seat = len(self._running()) < self._num_seats
        return first if has_seat and self._fits(first, []) else None

    def _admit(self, first: NaiveSequence, num_decodes: int, prompts: Plan) -> None:
        first.num_blocks = self._blocks_for(first.num_tokens)
        first.prefill_end = first.num_tokens
        self._prefill(first, num_decodes, prompts)

    def _prefill(self, sequence: NaiveSequence, num_decodes: int, prompts: Plan) -> None:
        """Give a prompt what is left."""
        flow = sequence.flow
        budget = self._budgets[flow]
        if num_decodes and sequence.prefill_end > self.config.max_num_batched_tokens:
            alone = self.cost.of(num_decodes=num_decodes, num_prefill_tokens=0)
            work = max((LONG_STEP - 1) * alone, sum(map(self._work_of, range(MIN_CHUNK))))
            budget = min(budget, self._tokens_worth(work, sequence.num_computed))
        num_tokens = min(sequence.prefill_end - sequence.num_computed, budget)
        if num_tokens:
            prompts.append((sequence.name, num_tokens))
            self.flows[flow].last_prefill = self._step
        self._budgets[flow] -= num_tokens
        is_enough = sum(number for _, number in prompts) >= self._enough
        if is_enough and not self._are_several:
            self._budgets[flow] = 0

    def _tokens_worth(self, work: float, position: int) -> int:
        """Return how many tokens from a position on take no more than `work`, at least 1."""
        count, work = 0, work - self.cost.per_context_token * position
        while (work := work - self._work_of(position + count)) > -1e-9:
            count += 1
        return max(1, count)

    def _work_of(self, position: int) -> float:
        """Return what the token there takes: it attends to itself and all before it."""
        per_token = self.cost.per_prefill_token + self.cost.per_context_token
        return per_token + self.cost.per_attended_token * (position + 1)

    @property
    def _are_several(self) -> bool:
        return len(self.flows) > 1

    @property
    def _enough(self) -> int:
        return self.config.enough_prompt_tokens or self.config.max_num_batched_tokens

    @property
    def _num_seats(self) -> int:
        return min(self.config.max_num_seqs, self.config.max_num_batched_tokens)

    def _running(self) -> list[NaiveSequence]:
        return self._by_rank(s for s in self.sequences.values() if s.num_blocks)

    def _line(self, flow: FlowKey) -> Iterator[NaiveSequence]:
        """Yield those of a flow that wait, in their order."""
        waiting = (s for s in self.sequences.values() if s.flow == flow and not s.num_blocks)
        yield from self._by_rank(waiting)

    def _by_rank(self, sequences: Iterable[NaiveSequence]) -> list[NaiveSequence]:
        return sorted(sequences, key=lambda s: s.rank)

    def _held_blocks(self, flow: FlowKey) -> tuple[bool, float]:
        number = sum(s.num_blocks for s in self._running() if s.flow == flow)
        return flow[0], number / self.flows[flow].weight

    def _num_free(self) -> int:
        return self.config.num_blocks - sum(s.num_blocks for s in self.sequences.values())

    def _may_grow(self, sequence: NaiveSequence) -> bool:
        needed = self._blocks_for(sequence.most_tokens - 1)
        return not sequence.prefill_only and needed > sequence.num_blocks

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)
