"""Room for adapters of one projection, in the form that its product reads.

Packed weights have theirs in the native product; elsewhere a kernel adds what an adapter adds after
the product. Knows slots and tensors. Knows nothing of adapters' names or files.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from pagoda_kernels.lora.add_lora import add_lora


class Adaptable(Protocol):
    """A projection that can have room for adapters."""

    def open_slots(self, num_slots: int, max_rank: int, part_rows: Sequence[int]) -> "LoraSlots":
        """Make the room; see `DenseLora`."""
        ...


class LoraSlots(Protocol):
    """A fixed number of adapters of one projection; each may be filled again."""

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        ...

    def write(self, slot: int, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        """Put an adapter into a slot that no running step reads.

        Args:
            slot: of those there are.
            a: ``[parts, r, K]``.
            b: ``[N, r]``, rows as the weight has them.
            scale: of what is added.
        """
        ...

    def clear(self, slot: int) -> None:
        """Add nothing for this slot any more."""
        ...


class DenseLora:
    """Slots of fixed shape beside a dense weight, for `add_lora`."""

    def __init__(
        self,
        num_slots: int,
        max_rank: int,
        part_rows: Sequence[int],
        width: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate all slots, empty.

        Args:
            num_slots: adapters at the same time.
            max_rank: of an adapter.
            part_rows: rows of the weight that have an A of their own, part after part.
            width: K.
            dtype: of the weight.
            device: of the weight.
        """
        self._part_rows = tuple(part_rows)
        self._a = [
            torch.zeros(num_slots, max_rank, width, dtype=dtype, device=device) for _ in part_rows
        ]
        self._b = [
            torch.zeros(num_slots, rows, max_rank, dtype=dtype, device=device) for rows in part_rows
        ]
        self._ranks = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._scales = torch.zeros(num_slots, dtype=torch.float32, device=device)

    @property
    def num_bytes(self) -> int:
        """See `LoraSlots`."""
        return sum(tensor.nbytes for tensor in (*self._a, *self._b))

    def write(self, slot: int, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        """See `LoraSlots`."""
        rank = a.shape[1]
        for held, part in zip(self._a, a, strict=True):
            held[slot].zero_()
            held[slot, :rank].copy_(part)
        for held, part in zip(self._b, b.split_with_sizes(self._part_rows), strict=True):
            held[slot].zero_()
            held[slot, :, :rank].copy_(part)
        self._scales[slot] = scale
        self._ranks[slot] = rank

    def clear(self, slot: int) -> None:
        """See `LoraSlots`."""
        self._ranks[slot] = 0

    def add(self, y: torch.Tensor, x: torch.Tensor, adapters: torch.Tensor) -> None:
        """Add to ``y [M, N]`` what the adapters of x ``[M, K]`` add.

        Args:
            y: output of the product, changed in place.
            x: its input.
            adapters: ``[M]`` int32 slots, -1 for none, on the same device.
        """
        first = 0
        for rows, a, b in zip(self._part_rows, self._a, self._b, strict=True):
            part = y[:, first : first + rows]
            add_lora(part, x, a, b, adapters, self._ranks, self._scales)
            first += rows
