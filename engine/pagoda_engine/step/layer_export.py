"""Reports the KV of prefill_only sequences layer by layer, while the rest of a forward runs.

Knows which blocks a step completes. Knows nothing of who reads them.
"""

import itertools
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from pagoda_engine.device.queue import Recorder
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.step.result import ComputedLayers

OnLayers = Callable[[tuple[ComputedLayers, ...]], None]


class LayerExport:
    """Cuts a forward into groups of layers."""

    def __init__(
        self, on_layers: OnLayers, blocks: SequenceBlocks, *, num_layers: int, num_groups: int
    ) -> None:
        """Choose the groups.

        Args:
            on_layers: called by a step's work after each group but the last: what that one
                completes, the step's result names at about the same time.
            blocks: of the engine.
            num_layers: of the model.
            num_groups: as even as possible; at most one for each layer.
        """
        self._on_layers = on_layers
        self._blocks = blocks
        num_groups = min(num_groups, num_layers)
        borders = [num_layers * i // num_groups for i in range(num_groups)]
        self._first_of_group = {end - 1: first for first, end in itertools.pairwise(borders)}

    def of_batch(
        self, batch: SequenceOf[ScheduledSequence]
    ) -> Callable[[int, Recorder], None] | None:
        """Return what a batch, not yet launched, calls after each layer; None if nothing."""
        exports = [export for entry in batch if (export := self._completed(entry)) is not None]
        if not exports:
            return None

        def on_layer(layer: int, recorder: Recorder) -> None:
            first = self._first_of_group.get(layer)
            if first is None:
                return
            wait = recorder.fence()
            num_layers = layer + 1 - first
            self._on_layers(
                tuple(ComputedLayers(*export, first, num_layers, wait) for export in exports)
            )

        return on_layer

    def _completed(self, entry: ScheduledSequence) -> tuple[str, int, tuple[int, ...]] | None:
        """(sequence, first block, block ids) that this step completes; whole ones but the last."""
        sequence = entry.sequence
        if not sequence.request.prefill_only:
            return None
        end = self._blocks.num_exportable(entry.num_context_tokens, is_last=entry.samples)
        first = sequence.num_announced_blocks
        if end <= first:
            return None
        sequence.num_announced_blocks = end
        return sequence.sequence_id, first, tuple(sequence.block_ids[first:end])
