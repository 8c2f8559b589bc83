"""Slots for adapters in all projections of a decoder: fixed in number, rank and bytes.

Knows the decoder's projections. Knows nothing of files, or of who uses a slot.
"""

import torch

from pagoda_engine.adapters.adapter import Adapter
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.feed_forward import DenseAndExperts, DenseFeedForward
from pagoda_engine.models.projections import Projection, adaptable_projections
from pagoda_kernels.lora.slots import Adaptable, LoraSlots


class AdapterSlots:
    """Room for a number of adapters. Owns the tensors, which the projections read."""

    def __init__(self, decoder: Decoder, *, num_slots: int, max_rank: int) -> None:
        """Allocate all slots, empty.

        Args:
            decoder: gets them; it has none yet.
            num_slots: adapters at the same time.
            max_rank: of an adapter.
        """
        self.num_slots = num_slots
        self.max_rank = max_rank
        self._description = decoder.description
        self._projections: list[tuple[Projection, LoraSlots]] = []
        for index, layer in enumerate(decoder.layers):
            linears: list[Adaptable] = [*layer.attention.linears]
            feed_forward = layer.feed_forward
            if isinstance(feed_forward, DenseAndExperts):
                feed_forward = feed_forward.dense
            if isinstance(feed_forward, DenseFeedForward):
                linears += [feed_forward.up, feed_forward.down]
            projections = adaptable_projections(self._description, index)
            for projection, linear in zip(projections, linears, strict=True):
                slots = linear.open_slots(num_slots, max_rank, projection.num_rows)
                self._projections.append((projection, slots))

    @property
    def description(self) -> DecoderDescription:
        """Of the decoder."""
        return self._description

    @property
    def num_bytes(self) -> int:
        """Memory of all slots, on the decoder's device."""
        return sum(slots.num_bytes for _, slots in self._projections)

    def write(self, slot: int, adapter: Adapter) -> None:
        """Put an adapter, of `max_rank` at most, into a slot that no step reads."""
        for projection, slots in self._projections:
            if not any(name in adapter.weights for name in projection.names):
                slots.clear(slot)
                continue
            a = torch.zeros(len(projection.names), adapter.rank, projection.num_columns)
            parts = []
            named = zip(projection.names, projection.num_rows, projection.arranges, strict=True)
            for i, (name, num_rows, arrange) in enumerate(named):
                weights = adapter.weights.get(name)
                if weights is None:
                    parts.append(torch.zeros(num_rows, adapter.rank))
                    continue
                a[i] = weights.a.float()
                b = weights.b.float()
                parts.append(b if arrange is None else arrange(b))
            slots.write(slot, a, torch.cat(parts), adapter.scale)


def slot_bytes(description: DecoderDescription, dtype: torch.dtype, max_rank: int) -> int:
    """Return what one slot takes, roughly: layouts round ranks and rows up."""
    elements = 0
    for layer in range(description.num_layers):
        for projection in adaptable_projections(description, layer):
            elements += len(projection.names) * projection.num_columns + sum(projection.num_rows)
    return elements * max_rank * dtype.itemsize
