"""A weight as codes: whole numbers or small floats, with a scale for each group of inputs.

What every format of quantised checkpoints is brought to. Knows nothing of how any of them packs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pagoda_engine.checkpoints.tensor_part import Arrange

CHUNK_ELEMENTS = 1 << 18
"""Of a weight that is widened at a time; it takes some 16 bytes for each."""


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """``w[n, k] = (value(codes[n, k]) - zeros[n, g]) * scales[n, g]``, in fp32.

    Attributes:
        codes: ``[N, K]`` uint8, int8 or float8_e4m3fn, contiguous.
        scales: ``[N, G]`` of a float dtype.
        zeros: ``[N, G]`` int16; None: all are 0.
        group_size: g is k // group_size.
        groups: ``[K]`` int64, the group of each k where they are not in that order; else None.
        bits: of a code in the checkpoint.
        dtype: that a weight is rounded to where it is widened.
        levels: whole numbers that codes of 4 bits stand for; None: for themselves.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group_size: int
    groups: torch.Tensor | None
    bits: int
    dtype: torch.dtype = torch.float32
    levels: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], self.codes.shape[1]

    def dequantised(self) -> torch.Tensor:
        """Return ``[N, K]``, each weight rounded to `dtype` once."""
        dense = torch.empty(self.shape, dtype=self.dtype, device=self.codes.device)
        scales = self.scales.float()
        zeros = None if self.zeros is None else self.zeros.float()
        levels = None
        if self.levels is not None:
            levels = torch.tensor(self.levels, dtype=torch.float32, device=self.codes.device)
        for rows in self._chunks():
            codes = self.codes[rows]
            values = codes.float() if levels is None else levels[codes.int()]
            if zeros is not None:
                self._grouped(values).sub_(self._spread(zeros[rows]))
            self._grouped(values).mul_(self._spread(scales[rows]))
            dense[rows] = values
        return dense

    def less_zeros(self, rows: slice) -> torch.Tensor:
        """Return some rows of whole numbers, ``[n, K]`` int16, their zero points taken off."""
        numbers = self.codes[rows].to(torch.int16)
        if self.zeros is not None:
            self._grouped(numbers).sub_(self._spread(self.zeros[rows]))
        return numbers

    @property
    def _is_regular(self) -> bool:
        """Groups are of one size and follow one another, so that nothing need be repeated."""
        return self.groups is None and self.shape[1] == self.group_size * self.scales.shape[1]

    def _grouped(self, values: torch.Tensor) -> torch.Tensor:
        """View ``[n, K]`` so that what `_spread` returns can be applied to it."""
        return values.view(len(values), -1, self.group_size) if self._is_regular else values

    def _spread(self, by_group: torch.Tensor) -> torch.Tensor:
        """Return what is said for each group, ``[n, G]``, of every input."""
        if self._is_regular:
            return by_group[:, :, None]
        if self.groups is not None:
            return by_group.index_select(1, self.groups)
        return by_group.repeat_interleave(self.group_size, 1)[:, : self.codes.shape[1]]

    def split(self, count: int) -> tuple["CodedWeight", ...]:
        """Return its rows in so many equal parts, which share its memory."""
        size = self.shape[0] // count
        zeros = self.zeros
        return tuple(
            replace(
                self,
                codes=self.codes[first : first + size],
                scales=self.scales[first : first + size],
                zeros=None if zeros is None else zeros[first : first + size],
            )
            for first in range(0, self.shape[0], size)
        )

    def arranged(self, arrange: Arrange | None) -> "CodedWeight":
        """Return it with its rows in another order."""
        if arrange is None:
            return self
        codes = arrange(self.codes.view(torch.uint8)).contiguous().view(self.codes.dtype)
        zeros = None if self.zeros is None else arrange(self.zeros)
        return replace(self, codes=codes, scales=arrange(self.scales), zeros=zeros)

    def _chunks(self) -> Iterator[slice]:
        num_rows = max(1, CHUNK_ELEMENTS // max(1, self.shape[1]))
        for first in range(0, self.shape[0], num_rows):
            yield slice(first, first + num_rows)


def joined(weights: Sequence[CodedWeight]) -> CodedWeight | None:
    """Return the rows of several as one; None if their codes or groups differ in kind."""
    first = weights[0]
    if len(weights) == 1:
        return first
    for other in weights[1:]:
        if (
            other.codes.dtype is not first.codes.dtype
            or other.scales.dtype is not first.scales.dtype
            or (other.group_size, other.bits) != (first.group_size, first.bits)
            or other.levels != first.levels
            or (other.zeros is None) != (first.zeros is None)
            or not _are_same(other.groups, first.groups)
        ):
            return None
    zeros = [weight.zeros for weight in weights if weight.zeros is not None]
    # There are float8 that cannot be joined on every device, but their bytes can.
    codes = torch.cat([weight.codes.view(torch.uint8) for weight in weights])
    return replace(
        first,
        codes=codes.view(first.codes.dtype),
        scales=torch.cat([weight.scales for weight in weights]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def _are_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
