"""Blocks for those that run: given as they need them, and taken from others where there are none.

Knows queues and blocks. Knows nothing of budgets, and not what else a step is of.
"""

from pagoda_engine.scheduler.proposing.speculator import Speculator
from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.resumption import Preemption, preemption
from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.step_counts import StepCounts
from pagoda_engine.scheduler.tenants.victims import growth_victim

GROWTH = "a decode needed a block, none was free, and its tenant held the most"
SHARE = "its tenant held more than one that waited"
STUCK = "prompts waited for each other's blocks, and its tenant held the most"
"""Why a running sequence loses its blocks."""


class RunningBlocks:
    """Gives running sequences blocks, and takes those of a victim away."""

    def __init__(
        self,
        queues: Queues,
        blocks: SequenceBlocks,
        counts: StepCounts,
        speculator: Speculator | None,
    ) -> None:
        self._queues = queues
        self._blocks = blocks
        self._counts = counts
        self._speculator = speculator
        self._preempted: list[Preemption] = []

    def take_preempted(self) -> tuple[Preemption, ...]:
        """Return who lost its blocks since the latest call."""
        preempted, self._preempted = tuple(self._preempted), []
        return preempted

    def grow(self, sequence: Sequence) -> bool:
        """Give a running sequence one more block. Returns False if none is free."""
        blocks = self._blocks
        if not blocks.grow(sequence):
            return False
        self._counts.took_blocks(sequence, 1, blocks.pool.parts_per_block)
        return True

    def grow_decodes(self, decodes: list[Sequence], cost: StepCost) -> list[Sequence]:
        """Give decodes the blocks of their next tokens; return the victims, if there are any.

        One of them may be a victim itself: then it does not run any more.
        """
        victims = list[Sequence]()
        blocks, running = self._blocks, SequenceState.RUNNING
        block_size = blocks.block_size
        growing = [  # the others' tokens go into blocks that they have
            s for s in decodes if not (s.num_launched_tokens % block_size and s.is_plain)
        ]
        for sequence in growing:
            while blocks.needs_block(sequence) and sequence.state is running:
                if not self.grow(sequence):
                    victims.append(self.preempt_largest(cost, GROWTH))
        return victims

    def extend(self, sequence: Sequence) -> int:
        """Give a prompt blocks for its next tokens; return for how many it has room."""
        num_blocks, num_places = len(sequence.block_ids), self._blocks.num_places(sequence)
        num_tokens = self._blocks.extend(sequence)
        if num_new := self._blocks.num_places(sequence) - num_places:
            self._counts.took_blocks(sequence, len(sequence.block_ids) - num_blocks, num_new)
        return num_tokens

    def are_stuck(self, prefills: list[Sequence]) -> bool:
        """Tell whether prompts that take blocks as they go on wait for each other's."""
        is_waiting = any(not self.extend(sequence) for sequence in prefills)
        running = self._queues.running
        is_in_flight = any(s.num_launched_tokens > s.num_computed_tokens for s in running)
        return is_waiting and not is_in_flight

    def preempt_largest(self, cost: StepCost, cause: str) -> Sequence:
        """Preempt the last one of the flow that holds the most, and return it."""
        victim = growth_victim(self._counts.holdings(), self._queues.running)
        self.preempt(victim, cost, cause)
        return victim

    def preempt(self, victim: Sequence, cost: StepCost, cause: str) -> None:
        """Take the blocks of a running sequence away, and let it wait."""
        self._counts.is_preempted(victim)
        self._preempted.append(preemption(victim, self._blocks.block_size, cost, cause=cause))
        self._queues.take_out(victim)
        self._blocks.free(victim)
        victim.restart_beams()
        victim.guesses = None  # those who wait are many, and they are soon made again
        if self._speculator is not None:
            self._speculator.forget(victim)
        victim.waits_for_tokens = False
        self._queues.wait(victim)
