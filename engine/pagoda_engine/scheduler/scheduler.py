"""Continuous batching: who waits, who runs, and how many tokens of whom the next step computes.

Knows sequences and blocks. Knows nothing of tensors, models or sampling.
"""

import math

from pagoda_engine.config import EngineConfig
from pagoda_engine.scheduler.admission import Admission
from pagoda_engine.scheduler.invariants import check_sequence
from pagoda_engine.scheduler.limits import count
from pagoda_engine.scheduler.preemption import SHARE, STUCK, RunningBlocks
from pagoda_engine.scheduler.proposing.room import ProposalRoom
from pagoda_engine.scheduler.proposing.speculator import Speculator
from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.rest import RestCounts
from pagoda_engine.scheduler.resumption import MatchLower
from pagoda_engine.scheduler.scheduled import ScheduledStep
from pagoda_engine.scheduler.sequence import Flow, Sequence, SequenceState
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.step_counts import StepCounts
from pagoda_engine.scheduler.step_plan import StepPlan
from pagoda_engine.scheduler.tenants.lateness import Lateness
from pagoda_engine.scheduler.tenants.sharing import SharedStep, demands_of


class Scheduler:
    """Queues and the policy over them.

    Within a flow (a tenant's sequences, those in the background apart) everything goes by rank: the
    lower priority number first, among equal ones who must end sooner, then the older. A step takes
    decodes first, then goes on with prefills that run already, then admits the sequences that wait,
    those of a lower number before a prefill goes on, as long as more tokens make the step more
    worth its time; one whose next block another one is making waits for it and is passed. Admission
    reserves the blocks of all tokens known so far, so only decodes ever ask for more (where layers
    have windows, of a few steps, which prompts get back as they go on); when none is left, a
    running sequence loses its blocks and goes back to its place in the queue: the last one of the
    flow that holds the most. Its tokens are kept, so it goes on as if nothing had happened; what is
    not cached any more it computes again, or has fetched, whichever is sooner (`resumption`).

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
        self.step_cost = StepCost()
        self._config = config
        self._speculator = speculator
        # No more decodes than one step can take, or the last would never be in one.
        self._queues = Queues(min(config.max_num_seqs, config.max_num_batched_tokens))
        self._counts = StepCounts(self._queues, blocks)
        self._admission = Admission(self._queues, blocks, self._counts)
        self._running_blocks = RunningBlocks(self._queues, blocks, self._counts, speculator)
        self._proposals: ProposalRoom | None = None
        if speculator is not None:
            self._proposals = ProposalRoom(
                config, self._queues, blocks, self._running_blocks, speculator
            )
        self._lateness = Lateness()
        self._num_steps = 0
        self._limits: list[tuple[Sequence, str]] = []
        self.waiting = self._queues.waiting
        self.running = self._queues.running
        self.importing = self._queues.importing
        self.held = self._queues.held

    @property
    def match_lower(self) -> MatchLower | None:
        """Says what a lower tier has of a preempted sequence's blocks; None: there is none."""
        return self._admission.match_lower

    @match_lower.setter
    def match_lower(self, match: MatchLower | None) -> None:
        self._admission.match_lower = match

    def get(self, sequence_id: str) -> Sequence | None:
        """Return a sequence that waits, imports, runs or is held."""
        return self._queues.get(sequence_id)

    def __len__(self) -> int:
        """Number of sequences in any of the states."""
        return len(self._queues)

    @property
    def num_taken_seats(self) -> int:
        """Sequences that run or wait for an import, one for each beam of a search."""
        return self._queues.num_taken_seats

    @property
    def adapters(self) -> set[bytes]:
        """Those that sequences in any of the states use."""
        return {s.request.adapter for s in self._queues if s.request.adapter}

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        flows = self._queues.flows
        is_new = sequence.flow not in flows
        self._queues.add(sequence)
        if is_new and flows.are_several:
            self._lateness.interrupted(sequence.flow, self.step_cost)

    def schedule(self) -> ScheduledStep:
        """Choose the next step's batch. Blocks and queues change; token counts do not."""
        self._num_steps += 1
        self._counts.begin_step()
        are_several = self._queues.flows.are_several
        victims = self._make_room() if are_several else []
        # Who was just preempted would be admitted at once and preempted again.
        closed = {victim.flow for victim in victims}
        prefills, decodes, resting = list[Sequence](), list[Sequence](), list[Sequence]()
        for sequence in self.running:
            if sequence.num_launched_tokens < sequence.prefill_end:
                prefills.append(sequence)
            elif (sequence.is_plain and not sequence.num_unread_tokens) or sequence.is_decoding:
                decodes.append(sequence)
            else:
                resting.append(sequence)
        shared = None
        if are_several:
            shared = self._share(decodes, prefills, resting, closed)
        plan = StepPlan(
            self._num_steps,
            self._config,
            self.step_cost,
            flows=self._queues.flows,
            running_blocks=self._running_blocks,
            proposals=self._proposals,
            shared=shared,
        )
        if others := plan.add_decodes(decodes):
            victims += others
            closed |= {victim.flow for victim in others}
        if victims:
            prefills = [s for s in prefills if s.state is SequenceState.RUNNING]
        self._add_prompts(plan, prefills, closed)
        if plan.batch:
            demands = None if shared is None else shared.demands
            self._lateness.note_step(plan.batch, demands, self.step_cost)
        elif self._running_blocks.are_stuck(prefills):
            self._running_blocks.preempt_largest(self.step_cost, STUCK)
        self._counts.end_step()
        self._limits = plan.limits
        reserved, resumed = self._admission.take_admitted()
        preempted = self._running_blocks.take_preempted()
        return ScheduledStep(tuple(plan.batch), reserved, preempted, resumed)

    def not_computed(self) -> None:
        """Note that the latest step is not computed; what was in it is scheduled again."""
        self._lateness.not_computed()
        for sequence, limit in self._limits:
            count(sequence.chunk_limits, limit, -1)

    def start_running(self, sequence: Sequence) -> None:
        """Let a sequence whose KV was imported take part in steps."""
        self._queues.take_out(sequence)
        if self._queues.flows.are_several:
            self._lateness.interrupted(sequence.flow, self.step_cost)
        self._queues.run(sequence)

    def give_up_import(self, sequence: Sequence) -> None:
        """Let a sequence wait again, to be computed here from what is cached."""
        self._queues.take_out(sequence)
        self.blocks.free(sequence)
        sequence.is_import_pending = False
        self._queues.wait(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Take a sequence out of the steps and keep its blocks."""
        self._queues.hold(sequence)
        self._leave_steps(sequence, SequenceState.HELD)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence in any state; its blocks are free on return."""
        self._queues.remove(sequence)
        if sequence.block_ids:
            self.blocks.free(sequence)
        if self._speculator is not None:
            self._speculator.learn(sequence)
        self._leave_steps(sequence, SequenceState.FINISHED)
        if sequence.flow not in self._queues.flows:
            self._lateness.forget(sequence.flow)

    def stop_proposing(self, sequence: Sequence) -> None:
        """Forget what is kept for a sequence to propose its next tokens."""
        sequence.guesses = None
        if self._speculator is not None:
            self._speculator.forget(sequence)

    def has_work(self) -> bool:
        """Tell whether `schedule` would choose or admit anything."""
        return bool(self.running) or self._admission.can_admit()

    def has_only_decodes(self) -> bool:
        """Tell whether all that `schedule` would choose are decodes."""
        return not self._admission.can_admit() and not any(s.is_prefilling for s in self.running)

    def rest_counts(self) -> RestCounts:
        """Count what `rest_after` judges by."""
        states = self._queues.flows.states
        running = [s for s in states if s.num_running]
        joining = [s for s in states if s.num_importing]
        if not all(state.flow.is_background for state in running):
            joining = [state for state in joining if not state.flow.is_background]
        return RestCounts(
            num_running=len(self.running),
            num_joining=sum(state.num_importing for state in joining),
            num_flows=len(running),
            num_newcomers=sum(not (s.num_running or s.flow.is_background) for s in joining),
        )

    def check_invariants(self) -> None:
        """Recount queues, states and block ownership from first principles."""
        self._queues.check_invariants()
        queued = [*self._queues]
        for sequence in queued:
            check_sequence(sequence, self.blocks)
        if self._speculator is not None:
            self._speculator.check_invariants(self.running)
        self.blocks.check_invariants(queued)

    def _leave_steps(self, sequence: Sequence, state: SequenceState) -> None:
        self.stop_proposing(sequence)
        sequence.leave_steps(state)

    def _make_room(self) -> list[Sequence]:
        """Let flows that hold much give to the one whose turn it is; return who gave."""
        victims = self._admission.givers()
        for victim in victims:
            self._running_blocks.preempt(victim, self.step_cost, SHARE)
        return victims

    def _share(
        self,
        decodes: list[Sequence],
        prefills: list[Sequence],
        resting: list[Sequence],
        closed: set[Flow],
    ) -> SharedStep:
        """Deal the step out to the flows by what they could use of it."""
        demands = demands_of(
            self._queues,
            self._lateness,
            decodes=decodes,
            prefills=prefills,
            resting=resting,
            foreseen_tokens=self._admission.foreseen_tokens(closed),
        )
        return SharedStep(
            demands,
            self.step_cost,
            max_num_seqs=self._queues.max_num_seqs,
            max_num_tokens=self._config.max_num_batched_tokens,
        )

    def _add_prompts(self, plan: StepPlan, prefills: list[Sequence], closed: set[Flow]) -> None:
        """Go on with prompts that run, and admit others: those of a lower number before them."""
        admission = self._admission
        admits = set(admission.flows_to_admit(closed) if prefills else ())
        for sequence in prefills:
            flow = sequence.flow
            while flow in admits and self._admit(plan, flow, before=sequence.priority):
                pass
            if plan.budgets[flow]:
                plan.add_prompt(sequence)
        while (first := next(iter(admission.flows_to_admit(closed)), None)) is not None:
            if not self._admit(plan, first):
                closed.add(first)

    def _admit(self, plan: StepPlan, flow: Flow, *, before: float = math.inf) -> bool:
        """Admit a flow's first, whose prompt goes on at once unless its KV comes from elsewhere."""
        has_budget = plan.budgets[flow] > 0
        admitted = self._admission.admit(flow, self.step_cost, has_budget=has_budget, before=before)
        if admitted is not None and admitted.state is SequenceState.RUNNING:
            plan.add_prompt(admitted)
        return admitted is not None
