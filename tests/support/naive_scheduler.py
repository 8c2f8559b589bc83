"""What the scheduler should plan for one tenant, step by step: plain counters, nothing shared.

Written from what `Scheduler` promises and not from how it does it, for callers without imports,
prefix caching and speculation. It knows how many tokens and blocks a sequence has, and no others'.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pagoda_engine import EngineConfig, StepCost
from pagoda_engine.scheduler.step_plan import LONG_STEP, MIN_CHUNK

Plan = list[tuple[str, int]]


@dataclass
class NaiveSequence:
    """A sequence as numbers. It waits while it has no blocks."""

    name: str
    priority: int
    deadline: float
    arrival: int
    num_tokens: int  # known: prompt and output
    most_tokens: int  # that it can have in the end
    prefill_only: bool
    num_computed: int = 0
    num_blocks: int = 0
    prefill_end: int = 0

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
        self.preempted: list[str] = []  # in the latest step

    def add(self, sequence: NaiveSequence) -> None:
        self.sequences[sequence.name] = sequence

    def finish(self, name: str) -> None:
        del self.sequences[name]

    def sampled(self, name: str) -> None:
        """A step brought one more token of a sequence that goes on."""
        self.sequences[name].num_tokens += 1

    def plan(self) -> Plan:
        """Return who computes how many tokens, in order: decodes, then prompts."""
        self.preempted = []
        decodes = self._decodes()
        room = self.config.max_num_batched_tokens - len(decodes)
        prompts: Plan = []
        prefills = [s for s in self._running() if s.is_prefilling]
        for sequence in prefills:
            while (first := self._admissible(room)) and first.priority < sequence.priority:
                room = self._admit(first, room, len(decodes), prompts)
            room = self._prefill(sequence, room, len(decodes), prompts)
        while first := self._admissible(room):
            room = self._admit(first, room, len(decodes), prompts)
        plan = [(sequence.name, 1) for sequence in decodes] + prompts
        for name, num_tokens in plan:
            self.sequences[name].num_computed += num_tokens
        return plan

    def _decodes(self) -> list[NaiveSequence]:
        """Everybody who decodes gets a token, the last ones' blocks if there are too few."""
        for sequence in [s for s in self._running() if not s.is_prefilling]:
            missing = self._blocks_for(sequence.num_tokens) > sequence.num_blocks
            while missing and sequence.num_blocks:
                if self._num_free():
                    sequence.num_blocks += 1
                    break
                # The last of those of whom nothing is on its way to another worker.
                self._preempt([s for s in self._running() if not s.prefill_only][-1])
        return [s for s in self._running() if not s.is_prefilling]

    def _preempt(self, victim: NaiveSequence) -> None:
        victim.num_blocks = victim.num_computed = victim.prefill_end = 0
        self.preempted.append(victim.name)

    def _admissible(self, room: int) -> NaiveSequence | None:
        """Return who is next in line, if there are a seat, tokens and blocks for it."""
        running = self._running()
        waiting = self._by_rank(s for s in self.sequences.values() if not s.num_blocks)
        if self.preempted or not waiting or not room or len(running) == self._num_seats:
            return None
        spare = 0
        if running:
            spare = sum(map(self._may_grow, running)) + self.config.num_blocks // 100
        fits = self._num_free() >= self._blocks_for(waiting[0].num_tokens) + spare
        return waiting[0] if fits else None

    def _admit(self, first: NaiveSequence, room: int, num_decodes: int, prompts: Plan) -> int:
        first.num_blocks = self._blocks_for(first.num_tokens)
        first.prefill_end = first.num_tokens
        return self._prefill(first, room, num_decodes, prompts)

    def _prefill(self, sequence: NaiveSequence, room: int, num_decodes: int, prompts: Plan) -> int:
        """Give a prompt what is left; return what is left then."""
        budget = room
        if num_decodes and sequence.prefill_end > self.config.max_num_batched_tokens:
            alone = self.cost.of(num_decodes=num_decodes, num_prefill_tokens=0)
            work = max((LONG_STEP - 1) * alone, sum(map(self._work_of, range(MIN_CHUNK))))
            budget = min(budget, self._tokens_worth(work, sequence.num_computed))
        num_tokens = min(sequence.prefill_end - sequence.num_computed, budget)
        if num_tokens:
            prompts.append((sequence.name, num_tokens))
        is_enough = sum(number for _, number in prompts) >= self._enough
        return 0 if is_enough else room - num_tokens

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
    def _enough(self) -> int:
        return self.config.enough_prompt_tokens or self.config.max_num_batched_tokens

    @property
    def _num_seats(self) -> int:
        return min(self.config.max_num_seqs, self.config.max_num_batched_tokens)

    def _running(self) -> list[NaiveSequence]:
        return self._by_rank(s for s in self.sequences.values() if s.num_blocks)

    def _by_rank(self, sequences: Iterable[NaiveSequence]) -> list[NaiveSequence]:
        return sorted(sequences, key=lambda s: s.rank)

    def _num_free(self) -> int:
        return self.config.num_blocks - sum(s.num_blocks for s in self.sequences.values())

    def _may_grow(self, sequence: NaiveSequence) -> bool:
        needed = self._blocks_for(sequence.most_tokens - 1)
        return not sequence.prefill_only and needed > sequence.num_blocks

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)
