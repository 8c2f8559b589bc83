"""How many of the tokens that are worth it a step has room for: rows, time that is nobody's, slots.

Knows queues, blocks and the speculator. Knows nothing of prompts but that they need room too.
"""

import math
from collections.abc import Sequence as SequenceOf

from pagoda_engine.config import EngineConfig
from pagoda_engine.scheduler.limits import ROOM, count
from pagoda_engine.scheduler.preemption import RunningBlocks
from pagoda_engine.scheduler.proposing.speculator import Speculator
from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.sequence import Flow, Sequence
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.step_cost import StepCost


class ProposalRoom:
    """Fits proposals into steps."""

    def __init__(
        self,
        config: EngineConfig,
        queues: Queues,
        blocks: SequenceBlocks,
        running_blocks: RunningBlocks,
        speculator: Speculator,
    ) -> None:
        self._max_num_rows = config.max_num_rows
        self._queues = queues
        self._blocks = blocks
        self._running_blocks = running_blocks
        self._speculator = speculator

    def rest(self, decodes: list[Sequence]) -> bool:
        """Tell whether nobody is asked for proposals in this step; to be asked once in each."""
        return self._speculator.rest(decodes)

    def propose(
        self, decodes: list[Sequence], cost: StepCost, *, spare: int, unclaimed: float
    ) -> dict[Sequence, SequenceOf[int]]:
        """Return the proposed tokens that a step verifies: fewer where others need the room.

        They take nobody's blocks, and half of what prompts could have at most. Of two flows each
        gets half of the time that neither claims.

        Args:
            decodes: all of the step.
            cost: of steps.
            spare: tokens of the step that are in no share.
            unclaimed: time of the step that is in no share.
        """
        if not decodes:
            return {}
        num_rows = self._queues.num_wanted_seats
        if num_rows >= self._max_num_rows:
            for sequence in decodes:
                sequence.waits_for_tokens = False
            self._speculator.note_load(decodes)
            return {}
        proposals = self._speculator.propose(
            decodes,
            cost,
            room=lambda: self._num_tokens(decodes, spare, num_rows),
            unclaimed=unclaimed / 2,
        )
        if proposals:
            room = self._num_tokens(decodes, spare, num_rows)
            unclaimed = max(0.0, unclaimed - self._speculator.draft_seconds)
            self._cut(proposals, cost.proposed(len(decodes)), room, unclaimed)
        return proposals

    def _cut(
        self,
        proposals: dict[Sequence, SequenceOf[int]],
        per_token: float,
        room: int,
        unclaimed: float,
    ) -> None:
        """Leave of proposals what there is room, time and blocks for."""
        rooms: dict[Flow, int] = {}
        if not math.isinf(unclaimed):
            flows = {sequence.flow for sequence in proposals}
            cost = per_token * max(1, len(flows))
            rooms = {flow: int(min(unclaimed / cost, room) if cost else room) for flow in flows}
        for sequence in proposals:
            flow = sequence.flow
            wanted = min(len(proposals[sequence]), room, rooms.get(flow, room))
            num_slots = self._blocks.num_free_slots(sequence)
            # Who waits may wait for a block.
            while (
                num_slots < wanted
                and not self._queues.waiting
                and self._running_blocks.grow(sequence)
            ):
                num_slots = self._blocks.num_free_slots(sequence)
            wanted = max(0, min(wanted, num_slots))
            if wanted < len(proposals[sequence]):
                count(sequence.proposal_limits, ROOM)
            proposals[sequence] = proposals[sequence][:wanted]
            sequence.waits_for_tokens &= wanted > 0
            room -= wanted
            if flow in rooms:
                rooms[flow] -= wanted

    def _num_tokens(self, decodes: list[Sequence], spare: int, num_rows: int) -> int:
        """Return how many tokens may be proposed in all, beside so many rows."""
        if self._queues.waiting or any(s.is_prefilling for s in self._queues.running):
            spare //= 2
        spare -= sum(s.num_uncomputed_tokens - 1 for s in decodes)  # forced ones come first
        return min(spare, self._max_num_rows - num_rows)
