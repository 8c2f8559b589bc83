"""Slots for low-rank adapters of a packed projection, in the layout that `sources/lora.h` reads.

Knows tensors and slots. Knows nothing of adapters' names or files.
"""

import ctypes
from collections.abc import Sequence

import torch

from pagoda_kernels.native.structures import Lora

RANKS = 16  # of sources/lora.h
PANEL = 64  # of sources/panels.h


class PackedLora:
    """Room for a fixed number of adapters of one projection. Owns their weights."""

    __slots__ = (
        "_a", "_b", "_part_ends", "_ranks", "_rows", "_scales", "max_rank", "num_slots",
        "shrunk_width", "structure",
    )  # fmt: skip

    def __init__(
        self,
        *,
        num_slots: int,
        max_rank: int,
        part_rows: Sequence[int],
        width: int,
        is_gated: bool,
        dtype: torch.dtype,
    ) -> None:
        """Allocate all slots, empty.

        Args:
            num_slots: adapters at the same time.
            max_rank: rounded up to a multiple of 16.
            part_rows: rows of the weight that have an A of their own, part after part: as many as
                the weight has in all.
            width: K of the projection.
            is_gated: see `PackedLinear`.
            dtype: of the projection.
        """
        self.num_slots = num_slots
        self.max_rank = -(-max_rank // RANKS) * RANKS
        self._part_ends = torch.tensor(part_rows, dtype=torch.int64).cumsum(0)
        total, each = int(self._part_ends[-1]), PANEL // (1 + is_gated)
        num_outputs = total // (1 + is_gated)
        num_panels = -(-num_outputs // each)
        # Which row of the weight lies in each column of each panel; `total`: none.
        columns = torch.arange(PANEL)
        outputs = torch.arange(num_panels)[:, None] * each + columns % each
        rows = outputs + columns // each * num_outputs
        self._rows = torch.where(outputs < num_outputs, rows, total)
        tiles = self.max_rank // RANKS
        self._a = torch.zeros(num_slots, len(part_rows), tiles, width, RANKS, dtype=dtype)
        self._b = torch.zeros(num_slots, num_panels, self.max_rank, PANEL, dtype=dtype)
        self._ranks = torch.zeros(num_slots, dtype=torch.int32)
        self._scales = torch.zeros(num_slots, dtype=torch.float32)
        self.shrunk_width = len(part_rows) * self.max_rank
        self.structure = Lora(
            a=self._a.data_ptr(),
            b=self._b.data_ptr(),
            ranks=self._ranks.data_ptr(),
            scales=self._scales.data_ptr(),
            part_ends=self._part_ends.data_ptr(),
            num_parts=len(part_rows),
            max_rank=self.max_rank,
        )

    @property
    def address(self) -> int:
        """Where the C sources find it, as long as this object lives."""
        return ctypes.addressof(self.structure)

    @property
    def num_bytes(self) -> int:
        """Memory of all slots."""
        return self._a.nbytes + self._b.nbytes

    def write(self, slot: int, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        """Put an adapter into a slot that no running step reads.

        Args:
            slot: below `num_slots`.
            a: ``[parts, r, K]``, r at most `max_rank`.
            b: ``[N, r]``, N rows as the weight has them.
            scale: of what is added.
        """
        rank = a.shape[1]
        wide = torch.zeros(len(a), self.max_rank, a.shape[2], dtype=self._a.dtype)
        wide[:, :rank] = a
        by_rank = wide.view(len(a), -1, RANKS, a.shape[2])
        self._a[slot].copy_(by_rank.transpose(2, 3))
        padded = torch.cat((b.to(self._b.dtype), b.new_zeros(1, rank, dtype=self._b.dtype)))
        self._b[slot].zero_()
        self._b[slot, :, :rank].copy_(padded[self._rows].transpose(1, 2))
        self._scales[slot] = scale
        self._ranks[slot] = rank

    def clear(self, slot: int) -> None:
        """Add nothing for this slot any more."""
        self._ranks[slot] = 0

    def check(self, adapters: torch.Tensor, num_rows: int) -> None:
        """Raise ValueError unless these are slots of so many rows."""
        check_adapters(adapters, num_rows, self.num_slots)


def check_adapters(adapters: torch.Tensor, num_rows: int, num_slots: int) -> None:
    """Raise ValueError unless these are slots below `num_slots`, or -1, of so many rows."""
    if adapters.dtype is not torch.int32 or adapters.shape != (num_rows,):
        raise ValueError(
            f"adapters: expected int32 [{num_rows}], got {adapters.dtype} {list(adapters.shape)}"
        )
    if not adapters.is_contiguous():
        raise ValueError(f"adapters: expected contiguous, got strides {adapters.stride()}")
    if num_rows and int(adapters.max()) >= num_slots:
        raise ValueError(f"adapters: {int(adapters.max())} is no slot of {num_slots}")
