"""Who is let in next: whose turn it is, and has a seat and the blocks of all its tokens.

Knows queues and blocks. Knows nothing of a step's budgets.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from collections.abc import Set as AbstractSet

from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.resumption import MatchLower, Resumption, resumption
from pagoda_engine.scheduler.sequence import Flow, Sequence
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.step_counts import StepCounts
from pagoda_engine.scheduler.tenants.victims import (
    Holdings,
    block_victims,
    may_give_seats,
    seat_victim,
)

SEATS, BLOCKS, STEP_TOKENS, PREFIX = "seats", "blocks", "step tokens", "shared prefix"
"""What a sequence that waits may lack: of the last another one computes the blocks."""
MAX_PASSED = 64
"""Sequences that wait for another one's blocks and are passed by those behind them, at the most."""

MAX_FORESEEN = 8
"""Waiting sequences of a flow whose prompts a step makes room for, at the most."""


class Admission:
    """Lets sequences that wait have seats and blocks.

    Attributes:
        match_lower: says what a lower tier has of a preempted sequence's blocks; None: there is no
            such tier.
    """

    def __init__(self, queues: Queues, blocks: SequenceBlocks, counts: StepCounts) -> None:
        self.match_lower: MatchLower | None = None
        self._queues = queues
        self._blocks = blocks
        self._counts = counts
        self._reserved: list[Sequence] = []
        self._resumed: list[Resumption] = []

    def take_admitted(self) -> tuple[tuple[Sequence, ...], tuple[Resumption, ...]]:
        """Return who got blocks since the latest call: for the first time, and again."""
        reserved, self._reserved = tuple(self._reserved), []
        resumed, self._resumed = tuple(self._resumed), []
        return reserved, resumed

    def can_admit(self) -> bool:
        """Tell whether anybody who waits finds a seat and blocks."""
        if not self._queues.waiting or not self._queues.has_seats():
            return False
        return any(has_blocks for _, has_blocks in self._firsts())

    def flows_to_admit(self, closed: AbstractSet[Flow]) -> Iterable[Flow]:
        """Return the flows that may admit somebody, whose turn it is first; not the closed ones."""
        queues = self._queues
        if not queues.waiting:
            return ()
        if not queues.has_seats():
            for sequence in queues.firsts():
                _lacks(sequence, SEATS)
            return ()
        if not queues.flows.are_several:
            return [flow for flow in queues.flows if flow not in closed]
        return (first.flow for first, has_blocks in self._firsts(closed) if has_blocks)

    def admit(
        self, flow: Flow, cost: StepCost, *, has_budget: bool, before: float = math.inf
    ) -> Sequence | None:
        """Admit the first of a flow that waits: it imports or runs on return.

        Args:
            flow: whose turn it is.
            cost: of steps.
            has_budget: the step has tokens for it; who imports needs none.
            before: it must have a lower priority number.

        Returns:
            It; None: nobody can be let in.
        """
        queues, blocks = self._queues, self._blocks
        sequence = self._first_in_line(flow) if queues.has_seats() else None
        if sequence is None or sequence.priority >= before or sequence.num_unread_tokens:
            return None
        lacks = ""
        if not queues.has_seats(sequence.num_seats):
            lacks = SEATS
        elif not has_budget and not sequence.is_import_pending:
            lacks = STEP_TOKENS
        elif not blocks.reserve(sequence, self._num_spare_blocks(sequence)):
            lacks = BLOCKS
        if lacks:
            _lacks(sequence, lacks)
            return None
        queues.take_out(sequence)
        if not sequence.was_reserved:
            sequence.was_reserved = True
            self._reserved.append(sequence)
        else:
            resumed = resumption(sequence, blocks, cost, self.match_lower)
            self._resumed.append(resumed)
            sequence.is_import_pending = bool(resumed.fetched)
        self._counts.was_admitted(sequence)
        if sequence.is_import_pending:
            queues.import_kv(sequence)
        else:
            queues.run(sequence)
        return sequence

    def givers(self) -> list[Sequence]:
        """Return who of flows that hold much must give to the one whose turn it is to be let in.

        To nobody else: what a later one were given, the first would take.
        """
        queues = self._queues
        if not queues.waiting:
            return []
        if not (queues.searches or queues.has_seats() or may_give_seats(queues.flows)):
            return []
        first, has_blocks = next(self._firsts(), (None, True))
        if first is None or (has_blocks and queues.has_seats(first.num_seats)):
            return []
        return self._givers_to(first, self._counts.holdings().copy())

    def foreseen_tokens(self, closed: AbstractSet[Flow]) -> dict[Flow, int]:
        """Return the tokens of prompts that a step makes room for before they are admitted.

        `closed` flows admit nobody.
        """
        num_tokens = dict[Flow, int]()
        if self._queues.waiting and self._queues.has_seats():
            for sequence, has_blocks in self._firsts(closed):
                if has_blocks:
                    line = itertools.islice(self._queues.line(sequence.flow), MAX_FORESEEN)
                    computed = (s for s in line if not s.is_import_pending)
                    num_tokens[sequence.flow] = sum(len(s.token_ids) for s in computed)
        return num_tokens

    def _givers_to(self, sequence: Sequence, holdings: Holdings) -> list[Sequence]:
        """Return who must give so that a sequence can be admitted; nobody if that is too much."""
        queues, blocks = self._queues, self._blocks
        flow, given = sequence.flow, list[Sequence]()
        num_seats = sequence.num_seats
        while not queues.has_seats(num_seats - sum(victim.num_seats for victim in given)):
            running = [s for s in queues.running if s not in given] if given else queues.running
            victim = seat_victim(holdings, running, flow, num_seats=num_seats)
            if victim is None:
                return []
            holdings.give_up(victim)
            given.append(victim)
        num_places = blocks.num_places_for(sequence)
        more = block_victims(holdings, queues.running, flow, num_places=num_places, first=given)
        while not blocks.can_reserve(sequence, self._num_spare_blocks(sequence, given), given):
            victim = next(more, None)
            if victim is None:
                return []
            given.append(victim)
        return given

    def _firsts(self, closed: AbstractSet[Flow] = frozenset()) -> Iterator[tuple[Sequence, bool]]:
        """Yield the first of each flow that waits, whose turn it is first, and if it finds blocks.

        Or seats, if it needs several. Who finds none is not passed by flows that hold more blocks
        than its own does.

        Args:
            closed: flows to leave out.
        """
        all_flows = self._queues.flows
        flows = [s.flow for s in all_flows.states if s.num_waiting and s.flow not in closed]
        holdings = self._counts.holdings() if all_flows.are_several else None
        if holdings is not None:
            flows.sort(key=lambda flow: (holdings.seats(flow), max(all_flows.last_steps(flow))))
        most = (True, math.inf)
        for flow in flows:
            if holdings is not None and holdings.places(flow) >= most:
                continue
            sequence = self._first_in_line(flow)
            if sequence is None or sequence.num_unread_tokens:
                continue
            has_blocks = self._queues.has_seats(sequence.num_seats) or sequence.num_seats == 1
            lacks = SEATS
            if has_blocks:
                num_spare = self._num_spare_blocks(sequence)
                has_blocks, lacks = self._blocks.can_reserve(sequence, num_spare), BLOCKS
            if not has_blocks:
                _lacks(sequence, lacks)
            if not has_blocks and holdings is not None:
                most = min(most, holdings.places(flow))
            yield sequence, has_blocks

    def _first_in_line(self, flow: Flow) -> Sequence | None:
        """Return the first of a flow that waits for nothing but blocks, a seat and budget.

        Those with a prefix that another one is making let others pass: they will find it cached.
        """
        for sequence in itertools.islice(self._queues.line(flow), MAX_PASSED + 1):
            if not self._blocks.should_wait(sequence):
                return sequence
            _lacks(sequence, PREFIX)
        return None

    def _num_spare_blocks(self, sequence: Sequence, victims: SequenceOf[Sequence] = ()) -> int:
        """Blocks that an admission leaves free, so that it does not cause a preemption soon.

        Each running sequence asks for at most one block in block_size steps, but for what grammars
        force, and so does each beam; those of `sequence` do once its prompt is computed. With none
        running nothing is spared: else a sequence as large as the pool would wait for ever.
        """
        if len(self._queues.running) == len(victims):
            return 0
        growing = self._counts.growing() - sum(map(self._blocks.num_growing, victims))
        return growing + sequence.num_seats - 1 + self._blocks.pool.num_blocks // 100


def _lacks(sequence: Sequence, what: str) -> None:
    if what not in sequence.waited_for:
        sequence.waited_for = (*sequence.waited_for, what)
