"""Continuous batching: who waits, who runs, and how many tokens of whom the next step computes.

Knows sequences and blocks. Knows nothing of tensors, models or sampling.
"""

import bisect
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from collections.abc import Set as AbstractSet
from operator import attrgetter

from pagoda_engine.config import EngineConfig
from pagoda_engine.scheduler.flows import Flows
from pagoda_engine.scheduler.invariants import check_sequence
from pagoda_engine.scheduler.lateness import Lateness
from pagoda_engine.scheduler.resumption import (
    MatchLower,
    Preemption,
    Resumption,
    preemption,
    resumption,
)
from pagoda_engine.scheduler.scheduled import ScheduledSequence, ScheduledStep
from pagoda_engine.scheduler.sequence import Flow, Sequence, SequenceState
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.speculator import Speculator
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.step_shares import Demand, Share, share_step, unclaimed_work
from pagoda_engine.scheduler.victims import Holdings, block_victims, growth_victim, seat_victim

MAX_PASSED = 64
"""Sequences that wait for another one's blocks and are passed by those behind them, at the most."""

MAX_FORESEEN = 8
"""Waiting sequences of a flow whose prompts a step makes room for, at the most."""
LONG_STEP = 1.6
"""A prompt of more than one step makes steps so many times as long as decodes alone do, or as its
`LEAST_CHUNK` makes them. Short prompts that join them, and what is misjudged, come on top."""
MIN_CHUNK = 16
"""Tokens of such a prompt in a step at least, or as many as take no longer than its first ones."""
LEAST_CHUNK = 4
"""Tokens in a step however much they attend to: one alone takes nearly as long, since all that is
before it is read, and a step that was misjudged must not make a prompt go on by single tokens."""
_BY_RANK = attrgetter("rank")


class Scheduler:
    """Queues and the policy over them.

    Within a flow (a tenant's sequences, those in the background apart) everything goes by rank: the
    lower priority number first, among equal ones the older. A step takes decodes first, then goes
    on with prefills that run already, then admits the sequences that wait, those of a lower number
    before a prefill goes on, as long as more tokens make the step more worth its time; one whose
    next block another one is making waits for it and is passed. Admission reserves the blocks of
    all tokens known so far, so only decodes ever ask for more (where layers have windows, of a few
    steps, which prompts get back as they go on); when none is left, a running
    sequence loses its blocks and goes back to its place in the queue: the last one of the flow that
    holds the most. Its tokens are kept, so it goes on as if nothing had happened; what is not
    cached any more it computes again, or has fetched, whichever is sooner (`resumption`).

    Among flows it goes by what they get for their weight, whatever their numbers:

    - Of a step each flow that can use anything gets something, and the step is not longer than the
      lightest one's share allows (`share_step`), and shorter while that one makes up for a step
      that it had to wait for (`Lateness`). A flow's decodes that find no place take turns.
    - A seat or blocks that are free go to the flow that has the fewest seats. If none are, the
      flow that holds the most gives up its last sequences to one that waits in each step, as long
      as it held more before than the other one does then. Nobody gives up its only one, but
      those in the background to others.
    - Whoever still lacks blocks is not passed by flows that hold more.

    So a flow alone has everything, and nothing that others send keeps one from its share.

    ``max_num_seqs`` caps the running and importing sequences together, and so does the budget of
    tokens: each of them is in a step sooner or later. Held ones are in none and do not count. A
    beam search has a seat for each beam from its admission on, is in a step with all of them or
    none, and loses the blocks of all of them together.
    """

    def __init__(
        self, config: EngineConfig, blocks: SequenceBlocks, speculator: Speculator | None = None
    ) -> None:
        self.blocks = blocks
        self._speculator = speculator
        self.step_cost = StepCost()
        self.match_lower: MatchLower | None = None
        # No more decodes than one step can take, or the last would never be in one.
        self._max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._max_num_rows = config.max_num_rows
        self._enough_prompt_tokens = config.enough_prompt_tokens or config.max_num_batched_tokens
        self._sequences: dict[str, Sequence] = {}
        self._searches: set[Sequence] = set()  # those of them that need several seats
        self._flows = Flows()
        self._lateness = Lateness()
        self._num_steps = 0
        self._preempted: list[Preemption] = []  # since the latest step
        self._resumed: list[Resumption] = []
        # Who holds how much, counted once for a step; None: not counted yet, or no longer true.
        self._is_scheduling = False
        self._held: Holdings | None = None
        self._num_growing: int | None = None
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.importing: dict[str, Sequence] = {}
        self.held: dict[str, Sequence] = {}

    def get(self, sequence_id: str) -> Sequence | None:
        """Return a sequence that waits, imports, runs or is held."""
        return self._sequences.get(sequence_id)

    def __len__(self) -> int:
        """Number of sequences in any of the states."""
        return len(self._sequences)

    @property
    def adapters(self) -> set[bytes]:
        """Those that sequences in any of the states use."""
        return {s.request.adapter for s in self._sequences.values() if s.request.adapter}

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._sequences[sequence.sequence_id] = sequence
        if sequence.num_seats > 1:
            self._searches.add(sequence)
        is_new = sequence.flow not in self._flows
        self._flows.add(sequence)
        if is_new and self._flows.are_several:
            self._lateness.interrupted(sequence.flow, self.step_cost)
        self._queue(sequence)

    def schedule(self) -> ScheduledStep:
        """Choose the next step's batch. Blocks and queues change; token counts do not."""
        self._num_steps += 1
        batch: list[ScheduledSequence] = []
        reserved: list[Sequence] = []
        self._is_scheduling = True
        victims = self._make_room() if self._flows.are_several else []
        prefills = [s for s in self.running if s.is_prefilling]
        decodes = [s for s in self.running if s.is_decoding]
        demands = self._demands(decodes, prefills) if self._flows.are_several else None
        shares = self._share_step(demands) if demands is not None else None
        unclaimed = math.inf if shares is None else self._unclaimed(demands or {}, shares)
        budgets = self._schedule_decodes(batch, decodes, demands, shares, unclaimed, victims)
        # Who was just preempted would be admitted at once and preempted again.
        closed = {victim.flow for victim in victims}
        if victims:
            prefills = [s for s in prefills if s.state is SequenceState.RUNNING]
        admits = set(self._flows_to_admit(closed) if prefills else ())
        for sequence in prefills:
            flow = sequence.flow
            while flow in admits and self._admit(
                flow, batch, budgets, reserved, before=sequence.priority
            ):
                pass
            if budgets[flow]:
                self._schedule_prefill(sequence, budgets, batch)
        while (first := next(iter(self._flows_to_admit(closed)), None)) is not None:
            if not self._admit(first, batch, budgets, reserved):
                closed.add(first)
        if batch:
            self._lateness.note_step(batch, demands, self.step_cost)
        elif self._are_stuck(prefills):
            self._preempt(growth_victim(self._holdings(), self.running))
        self._is_scheduling, self._held, self._num_growing = False, None, None
        preempted, self._preempted = tuple(self._preempted), []
        resumed, self._resumed = tuple(self._resumed), []
        return ScheduledStep(tuple(batch), tuple(reserved), preempted, resumed)

    def start_running(self, sequence: Sequence) -> None:
        """Let a sequence whose blocks are reserved take part in steps."""
        was_importing = self.importing.pop(sequence.sequence_id, None) is not None
        if was_importing and self._flows.are_several:
            self._lateness.interrupted(sequence.flow, self.step_cost)
        sequence.is_import_pending = False
        sequence.state = SequenceState.RUNNING
        bisect.insort(self.running, sequence, key=_BY_RANK)

    def give_up_import(self, sequence: Sequence) -> None:
        """Let a sequence wait again, to be computed here from what is cached."""
        del self.importing[sequence.sequence_id]
        self.blocks.free(sequence)
        sequence.is_import_pending = False
        sequence.state = SequenceState.WAITING
        self._queue(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Take a sequence out of the steps and keep its blocks."""
        self.running.remove(sequence)
        self._leave_steps(sequence, SequenceState.HELD)
        self.held[sequence.sequence_id] = sequence

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence in any state; its blocks are free on return."""
        match sequence.state:
            case SequenceState.WAITING:
                self.waiting.remove(sequence)
            case SequenceState.IMPORTING:
                del self.importing[sequence.sequence_id]
            case SequenceState.RUNNING:
                self.running.remove(sequence)
            case SequenceState.HELD:
                del self.held[sequence.sequence_id]
            case SequenceState.FINISHED:
                raise AssertionError(f"sequence {sequence.sequence_id!r} finished twice")
        if sequence.block_ids:
            self.blocks.free(sequence)
        if self._speculator is not None:
            self._speculator.learn(sequence)
        self._leave_steps(sequence, SequenceState.FINISHED)
        self._flows.remove(sequence)
        if sequence.flow not in self._flows:
            self._lateness.forget(sequence.flow)
        del self._sequences[sequence.sequence_id]
        self._searches.discard(sequence)

    def stop_proposing(self, sequence: Sequence) -> None:
        """Forget what is kept for a sequence to propose its next tokens."""
        sequence.guesses = None
        if self._speculator is not None:
            self._speculator.forget(sequence)

    def has_work(self) -> bool:
        """Tell whether `schedule` would choose or admit anything."""
        return bool(self.running) or self._can_admit()

    def has_only_decodes(self) -> bool:
        """Tell whether all that `schedule` would choose are decodes."""
        return not self._can_admit() and not any(s.is_prefilling for s in self.running)

    def _leave_steps(self, sequence: Sequence, state: SequenceState) -> None:
        self.stop_proposing(sequence)
        sequence.leave_steps(state)

    def _make_room(self) -> list[Sequence]:
        """Let flows that hold much give to the one whose turn it is to be let in; return who gave.

        To nobody else: what a later one were given, the first would take.
        """
        first, has_blocks = next(self._firsts(), (None, True))
        if first is None or (has_blocks and self._has_seats(first.num_seats)):
            return []
        victims = self._victims_for(first, self._holdings().copy())
        for victim in victims:
            self._preempt(victim)
        return victims

    def _victims_for(self, sequence: Sequence, holdings: Holdings) -> list[Sequence]:
        """Return who must give so that a sequence can be admitted; nobody if that is too much."""
        flow, given = sequence.flow, list[Sequence]()
        num_seats = sequence.num_seats
        while not self._has_seats(num_seats - sum(victim.num_seats for victim in given)):
            running = [s for s in self.running if s not in given] if given else self.running
            victim = seat_victim(holdings, running, flow, num_seats=num_seats)
            if victim is None:
                return []
            holdings.give_up(victim)
            given.append(victim)
        num_blocks = self.blocks.num_blocks_for(len(sequence.token_ids))
        more = block_victims(holdings, self.running, flow, num_blocks=num_blocks, first=given)
        while not self.blocks.can_reserve(sequence, self._num_spare_blocks(sequence, given), given):
            victim = next(more, None)
            if victim is None:
                return []
            given.append(victim)
        return given

    def _demands(self, decodes: list[Sequence], prefills: list[Sequence]) -> dict[Flow, Demand]:
        """Return what each flow could use of a step."""
        num_decodes, num_tokens, num_importing = Counter[Flow](), Counter[Flow](), Counter[Flow]()
        for sequence in prefills:
            num_tokens[sequence.flow] += sequence.num_uncomputed_tokens
        for sequence in decodes:
            num_decodes[sequence.flow] += 1 + len(sequence.siblings)
        for sequence in self.importing.values():
            num_importing[sequence.flow] += 1
        if self._has_seats():
            for sequence, has_blocks in self._firsts():
                if has_blocks:
                    line = itertools.islice(self._line(sequence.flow), MAX_FORESEEN)
                    computed = (s for s in line if not s.is_import_pending)
                    num_tokens[sequence.flow] += sum(len(s.token_ids) for s in computed)
        demands = {}
        for flow in self._flows:
            last_decode, last_prefill = self._flows.last_steps(flow)
            demands[flow] = Demand(
                weight=self._flows.weight(flow),
                last_decode=last_decode,
                last_prefill=last_prefill,
                num_decodes=num_decodes[flow],
                num_prefill_tokens=num_tokens[flow],
                num_importing=num_importing[flow],
                is_late=self._lateness.is_late(flow),
            )
        return demands

    def _share_step(self, demands: dict[Flow, Demand]) -> dict[Flow, Share]:
        """Deal the step out to the flows by what they could use of it."""
        return share_step(
            demands,
            self.step_cost,
            max_num_seqs=self._max_num_seqs,
            max_num_tokens=self._max_num_batched_tokens,
        )

    def _unclaimed(self, demands: dict[Flow, Demand], shares: dict[Flow, Share]) -> float:
        """Return the time of a step that is in no share."""
        if self._speculator is None:
            return 0.0
        return unclaimed_work(
            demands,
            shares,
            self.step_cost,
            max_num_seqs=self._max_num_seqs,
            max_num_tokens=self._max_num_batched_tokens,
        )

    def _schedule_decodes(
        self,
        batch: list[ScheduledSequence],
        decodes: list[Sequence],
        demands: dict[Flow, Demand] | None,
        shares: dict[Flow, Share] | None,
        unclaimed: float,
        victims: list[Sequence],
    ) -> Counter[Flow]:
        """Give decodes their token; forced and proposed ones come out of what is nobody's share.

        Args:
            batch: gets them.
            decodes: all that could be in the step.
            demands: that the shares are of.
            shares: of the step; None for a flow that is alone.
            unclaimed: time of the step that is in no share.
            victims: gets those who lost their blocks to a decode.

        Returns:
            The tokens that each flow's prompts may have.
        """
        budgets = Counter[Flow]()
        if demands is not None and shares is not None:
            if any(shares[flow].num_decodes < demands[flow].num_decodes for flow in demands):
                decodes = self._take_turns(decodes, shares)
            budgets.update({flow: share.num_prefill_tokens for flow, share in shares.items()})
        for sequence in decodes:
            while self.blocks.needs_block(sequence) and sequence.state is SequenceState.RUNNING:
                if not self._grow(sequence):
                    victims.append(growth_victim(self._holdings(), self.running))
                    self._preempt(victims[-1])
        if victims:
            decodes = [s for s in decodes if s.state is SequenceState.RUNNING]
        num_rows = len(decodes) + sum(len(sequence.siblings) for sequence in decodes)
        spare = self._max_num_batched_tokens - num_rows - budgets.total()
        if spare < 0:  # a search took more turns than its flow had: prompts wait for it
            for flow in budgets:
                spare, budgets[flow] = min(0, spare + budgets[flow]), max(0, budgets[flow] + spare)
        proposals = self._propose(decodes, spare, unclaimed)
        for flow in {sequence.flow for sequence in decodes}:
            self._flows.note_step(flow, self._num_steps, is_prefill=False)
        for sequence in decodes:
            proposed = proposals.get(sequence, ())
            spare -= self._schedule_chunk(sequence, spare + 1, batch, tuple(proposed)) - 1
            for sibling in sequence.siblings:
                self._schedule_chunk(sibling, 1, batch)
        if shares is None:
            budgets.update(dict.fromkeys(self._flows, spare))
        return budgets

    def _propose(
        self, decodes: list[Sequence], spare: int, unclaimed: float
    ) -> dict[Sequence, SequenceOf[int]]:
        """Return the proposed tokens that this step verifies: fewer where others need the room.

        They take nobody's blocks, and half of what prompts could have at most. Of two flows each
        gets half of the time that neither claims.
        """
        if self._speculator is None or not decodes:
            return {}
        num_rows = len(self.running) + len(self.waiting)
        num_rows = min(self._max_num_seqs, num_rows + self._num_more_seats(self._searches))
        if num_rows >= self._max_num_rows:
            for sequence in decodes:
                sequence.waits_for_tokens = False
            return {}
        proposals = self._speculator.propose(
            decodes,
            self.step_cost,
            room=lambda: self._room_for_proposals(decodes, spare, num_rows),
            unclaimed=unclaimed / 2,
        )
        if not proposals:
            return proposals
        room = self._room_for_proposals(decodes, spare, num_rows)
        unclaimed = max(0.0, unclaimed - self._speculator.draft_seconds)
        rooms: dict[Flow, int] = {}
        if not math.isinf(unclaimed):
            flows = {sequence.flow for sequence in proposals}
            cost = self.step_cost.proposed(len(decodes)) * max(1, len(flows))
            rooms = {flow: int(min(unclaimed / cost, room) if cost else room) for flow in flows}
        for sequence in proposals:
            flow = sequence.flow
            wanted = min(len(proposals[sequence]), room, rooms.get(flow, room))
            num_slots = self.blocks.num_free_slots(sequence)
            # Who waits may wait for a block.
            while num_slots < wanted and not self.waiting and self._grow(sequence):
                num_slots = self.blocks.num_free_slots(sequence)
            wanted = max(0, min(wanted, num_slots))
            proposals[sequence] = proposals[sequence][:wanted]
            sequence.waits_for_tokens &= wanted > 0
            room -= wanted
            if flow in rooms:
                rooms[flow] -= wanted
        return proposals

    def _room_for_proposals(self, decodes: list[Sequence], spare: int, num_rows: int) -> int:
        """Return how many tokens may be proposed in all, beside so many rows."""
        if self.waiting or any(s.is_prefilling for s in self.running):
            spare //= 2
        spare -= sum(s.num_uncomputed_tokens - 1 for s in decodes)  # forced ones come first
        return min(spare, self._max_num_rows - num_rows)

    def _take_turns(self, decodes: list[Sequence], shares: dict[Flow, Share]) -> list[Sequence]:
        """Return as many of each flow's decodes as it has a share of: those that waited longest."""
        left = {flow: share.num_decodes for flow, share in shares.items()}
        chosen = []
        for sequence in sorted(decodes, key=lambda s: (s.last_step, s.rank)):
            if left[sequence.flow]:  # beams are not parted, even if fewer turns are left
                left[sequence.flow] = max(0, left[sequence.flow] - len(sequence.members))
                chosen.append(sequence)
        return sorted(chosen, key=_BY_RANK)

    def _schedule_prefill(
        self, sequence: Sequence, budgets: Counter[Flow], batch: list[ScheduledSequence]
    ) -> None:
        """Give a prompt its tokens: all of them if it fits a step, else few beside decodes.

        Who decodes waits once for a short prompt, but not again and again for a long one. Whether
        it is long goes by what it takes: few tokens behind a long cached prefix take long too.
        """
        flow, cost = sequence.flow, self.step_cost
        budget, cached = min(budgets[flow], self._extend(sequence)), sequence.num_cached_tokens
        if not budget:
            return
        whole_step = cost.of_prompt(0, self._max_num_batched_tokens)
        is_long = cost.of_prompt(cached, sequence.prefill_end - cached) > whole_step
        if is_long and (num_decodes := sum(not entry.is_prefill for entry in batch)):
            spare = (LONG_STEP - 1) * cost.of(num_decodes=num_decodes, num_prefill_tokens=0)
            spare = max(spare, cost.of_prompt(0, MIN_CHUNK))
            num_tokens = cost.tokens_within(spare, sequence.num_launched_tokens)
            budget = min(budget, max(LEAST_CHUNK, num_tokens))
        self._flows.note_step(flow, self._num_steps, is_prefill=True)
        budgets[flow] -= self._schedule_chunk(sequence, budget, batch)
        if not self._flows.are_several:
            num_scheduled = sum(entry.num_new_tokens for entry in batch if entry.is_prefill)
            if num_scheduled >= self._enough_prompt_tokens:
                budgets[flow] = 0

    def _schedule_chunk(
        self,
        sequence: Sequence,
        budget: int,
        batch: list[ScheduledSequence],
        proposed: tuple[int, ...] = (),
    ) -> int:
        first_token = sequence.num_launched_tokens
        missing = sequence.num_tokens - first_token + len(proposed)
        num_new_tokens = min(missing, budget)
        is_prefill, samples = first_token < sequence.prefill_end, num_new_tokens == missing
        sequence.last_step = self._num_steps
        batch.append(  # by position: by name it takes half as long again
            ScheduledSequence(sequence, first_token, num_new_tokens, is_prefill, samples, proposed)
        )
        return num_new_tokens

    def _extend(self, sequence: Sequence) -> int:
        """Give a prompt blocks for its next tokens; return for how many it has room."""
        num_before = len(sequence.block_ids)
        num_tokens = self.blocks.extend(sequence)
        if num_new := len(sequence.block_ids) - num_before:
            self._num_growing = None
            if self._held is not None:
                for _ in range(num_new):
                    self._held.take_block(sequence.flow)
        return num_tokens

    def _are_stuck(self, prefills: list[Sequence]) -> bool:
        """Tell whether prompts that take blocks as they go on wait for each other's."""
        is_waiting = any(not self._extend(sequence) for sequence in prefills)
        is_in_flight = any(s.num_launched_tokens > s.num_computed_tokens for s in self.running)
        return is_waiting and not is_in_flight

    def _preempt(self, victim: Sequence) -> None:
        """Take the blocks of a running sequence away."""
        if self._held is not None:
            self._held.give_up(victim)
        self._num_growing = None
        self._preempted.append(preemption(victim, self.blocks.block_size, self.step_cost))
        self.running.remove(victim)
        self.blocks.free(victim)
        victim.restart_beams()
        self.stop_proposing(victim)  # those who wait are many, and it is soon made again
        victim.waits_for_tokens = False
        victim.state = SequenceState.WAITING
        self._queue(victim)

    def _queue(self, sequence: Sequence) -> None:
        """Let a sequence wait in front of all who rank behind it."""
        bisect.insort(self.waiting, sequence, key=_BY_RANK)

    def _admit(
        self,
        flow: Flow,
        batch: list[ScheduledSequence],
        budgets: Counter[Flow],
        reserved: list[Sequence],
        *,
        before: float = math.inf,
    ) -> bool:
        """Admit the first of a flow that waits, if it has a priority number below `before`.

        Who gets blocks for the first time is put into `reserved`.
        """
        sequence = self._first_in_line(flow) if self._has_seats() else None
        if sequence is None or sequence.priority >= before or sequence.num_unread_tokens:
            return False
        if not self._has_seats(sequence.num_seats):
            return False
        if not budgets[flow] and not sequence.is_import_pending:
            return False
        if not self.blocks.reserve(sequence, self._num_spare_blocks(sequence)):
            return False
        self.waiting.remove(sequence)
        if self._held is not None:
            self._held.take_seat(sequence)
        if not sequence.was_reserved:
            sequence.was_reserved = True
            reserved.append(sequence)
        else:
            resumed = resumption(sequence, self.blocks, self.step_cost, self.match_lower)
            self._resumed.append(resumed)
            sequence.is_import_pending = bool(resumed.fetched)
        if sequence.is_import_pending:
            sequence.state = SequenceState.IMPORTING
            self.importing[sequence.sequence_id] = sequence
        else:
            self.start_running(sequence)
            if self._num_growing is not None:
                self._num_growing += self.blocks.num_growing(sequence)
            self._schedule_prefill(sequence, budgets, batch)
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Give a running sequence one more block. Returns False if none is free."""
        if not self.blocks.grow(sequence):
            return False
        if self._held is not None:
            self._held.take_block(sequence.flow)
        self._num_growing = None
        return True

    def _flows_to_admit(self, closed: AbstractSet[Flow]) -> Iterable[Flow]:
        """Return the flows that may admit somebody, whose turn it is first; not the closed ones."""
        if not self.waiting or not self._has_seats():
            return ()
        if not self._flows.are_several:
            return [flow for flow in self._flows if flow not in closed]
        return (first.flow for first, has_blocks in self._firsts(closed) if has_blocks)

    def _can_admit(self) -> bool:
        if not self.waiting or not self._has_seats():
            return False
        return any(has_blocks for _, has_blocks in self._firsts())

    def _firsts(self, closed: AbstractSet[Flow] = frozenset()) -> Iterator[tuple[Sequence, bool]]:
        """Yield the first of each flow that waits, whose turn it is first, and if it finds blocks.

        Or seats, if it needs several. Who finds none is not passed by flows that hold more blocks
        than its own does.

        Args:
            closed: flows to leave out.
        """
        flows = [flow for flow in self._flows if flow not in closed]
        holdings = self._holdings() if self._flows.are_several else None
        if holdings is not None:
            flows.sort(key=lambda flow: (holdings.seats(flow), max(self._flows.last_steps(flow))))
        most = (True, math.inf)
        for flow in flows:
            if holdings is not None and holdings.blocks(flow) >= most:
                continue
            sequence = self._first_in_line(flow)
            if sequence is None or sequence.num_unread_tokens:
                continue
            has_blocks = self._has_seats(sequence.num_seats) or sequence.num_seats == 1
            if has_blocks:
                num_spare = self._num_spare_blocks(sequence)
                has_blocks = self.blocks.can_reserve(sequence, num_spare)
            if not has_blocks and holdings is not None:
                most = min(most, holdings.blocks(flow))
            yield sequence, has_blocks

    def _first_in_line(self, flow: Flow) -> Sequence | None:
        """Return the first of a flow that waits for nothing but blocks, a seat and budget.

        Those with a prefix that another one is making let others pass: they will find it cached.
        """
        line = itertools.islice(self._line(flow), MAX_PASSED + 1)
        return next((s for s in line if not self.blocks.should_wait(s)), None)

    def _line(self, flow: Flow) -> Iterator[Sequence]:
        """Return those of a flow that wait, in their order."""
        if not self._flows.are_several:
            return iter(self.waiting)
        return (sequence for sequence in self.waiting if sequence.flow == flow)

    def _holdings(self) -> Holdings:
        held = self._held
        if held is None:
            holders = itertools.chain(self.running, self.importing.values())
            held = Holdings(self._flows, holders)
            if self._is_scheduling:
                self._held = held
        return held

    def _has_seats(self, num_seats: int = 1) -> bool:
        return self.num_taken_seats + num_seats <= self._max_num_seqs

    @property
    def num_taken_seats(self) -> int:
        """Sequences that run or wait for an import, one for each beam of a search."""
        waiting = SequenceState.WAITING
        more = self._num_more_seats(s for s in self._searches if s.state is not waiting)
        return len(self.running) + len(self.importing) + more

    def _num_more_seats(self, searches: Iterable[Sequence]) -> int:
        """Return the seats that searches need beside the one of each."""
        return sum(sequence.num_seats - 1 for sequence in searches)

    def _num_spare_blocks(self, sequence: Sequence, victims: SequenceOf[Sequence] = ()) -> int:
        """Blocks that an admission leaves free, so that it does not cause a preemption soon.

        Each running sequence asks for at most one block in block_size steps, but for what grammars
        force, and so does each beam; those of `sequence` do once its prompt is computed. With none
        running nothing is spared: else a sequence as large as the pool would wait for ever.
        """
        if len(self.running) == len(victims):
            return 0
        growing = self._growing() - sum(map(self.blocks.num_growing, victims))
        return growing + sequence.num_seats - 1 + self.blocks.pool.num_blocks // 100

    def _growing(self) -> int:
        """Return the blocks that running sequences may ask for before one step."""
        growing = self._num_growing
        if growing is None:
            growing = sum(map(self.blocks.num_growing, self.running))
            if self._is_scheduling:
                self._num_growing = growing
        return growing

    def check_invariants(self) -> None:
        """Recount queues, states and block ownership from first principles."""
        queues = [
            (SequenceState.WAITING, list(self.waiting)),
            (SequenceState.IMPORTING, list(self.importing.values())),
            (SequenceState.RUNNING, self.running),
            (SequenceState.HELD, list(self.held.values())),
        ]
        queued = [s for _, queue in queues for s in queue]
        assert len(queued) == len(self._sequences) == len({s.sequence_id for s in queued})
        assert all(self._sequences[s.sequence_id] is s for s in queued)
        assert all(s.state is state for state, queue in queues for s in queue)
        assert [*self.waiting] == sorted(self.waiting, key=_BY_RANK), "the queue lost its order"
        assert self.running == sorted(self.running, key=_BY_RANK), "the batch lost its order"
        assert self.num_taken_seats <= self._max_num_seqs
        assert self._searches == {s for s in queued if s.num_seats > 1}
        for sequence in queued:
            check_sequence(sequence, self.blocks)
        if self._speculator is not None:
            self._speculator.check_invariants(self.running)
        self._flows.check_invariants(queued)
        self.blocks.check_invariants(queued)
