"""Who holds how much, and may ask for more: counted once for a step, and kept true in it.

Knows queues and blocks. Knows nothing of budgets.
"""

import itertools

from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.tenants.victims import Holdings


class StepCounts:
    """What is counted when it is first asked for in a step. Between steps it is counted each time.

    Whoever gives or takes seats and blocks while a step is made says so here.
    """

    def __init__(self, queues: Queues, blocks: SequenceBlocks) -> None:
        self._queues = queues
        self._blocks = blocks
        self._is_in_step = False
        self._held: Holdings | None = None
        self._num_growing: int | None = None

    def begin_step(self) -> None:
        """Keep what is counted from here on."""
        self._is_in_step = True

    def end_step(self) -> None:
        """Keep nothing any more: others change what was counted."""
        self._is_in_step, self._held, self._num_growing = False, None, None

    def holdings(self) -> Holdings:
        """Return what each flow holds."""
        held = self._held
        if held is None:
            holders = itertools.chain(self._queues.running, self._queues.importing.values())
            held = Holdings(self._queues.flows, holders, self._blocks.num_places)
            if self._is_in_step:
                self._held = held
        return held

    def growing(self) -> int:
        """Return the blocks that running sequences may ask for before one step."""
        growing = self._num_growing
        if growing is None:
            growing = self._blocks.num_growing_of(self._queues.running)
            if self._is_in_step:
                self._num_growing = growing
        return growing

    def took_blocks(self, sequence: Sequence, num_blocks: int, num_places: int) -> None:
        """Count what a running sequence got, and has now; `num_places`: of whole blocks or less."""
        if self._num_growing is not None and num_blocks:
            num_before = self._blocks.num_growing(sequence, -num_blocks)
            self._num_growing += self._blocks.num_growing(sequence) - num_before
        if self._held is not None:
            self._held.take_places(sequence.flow, num_places)

    def was_admitted(self, sequence: Sequence) -> None:
        """Count one that has its blocks, and imports or runs."""
        if self._held is not None:
            self._held.take_seat(sequence)
        if self._num_growing is not None and not sequence.is_import_pending:
            self._num_growing += self._blocks.num_growing(sequence)

    def is_preempted(self, sequence: Sequence) -> None:
        """Count out one that runs and is about to lose its blocks."""
        if self._num_growing is not None:
            self._num_growing -= self._blocks.num_growing(sequence)
        if self._held is not None:
            self._held.give_up(sequence)
