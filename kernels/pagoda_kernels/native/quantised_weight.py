"""Weights of 8 or 4 bits: what they mean, and how a dense weight becomes one.

Every 32 weights along K share a scale. A code of 8 bits is a whole number; one of 4 bits is an
index into 16 levels, `LEVELS` where they are chosen here. Knows nothing of how they are laid out
for products (`packed_linear`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from pagoda_kernels.native.library import native_library
from pagoda_kernels.native.structures import QuantiseJob

Bits = Literal[4, 8]

GROUP = 32
LEVELS = (-127, -100, -80, -64, -49, -35, -23, -11, 0, 12, 25, 38, 52, 68, 87, 111)
"""Least squared error over groups of normal weights whose largest is at the first level; all exact
in bf16. With them an eighth less error than with 16 levels at even distances."""

FACTORS = (1.0, 0.82, 0.86, 0.9, 0.94, 0.98, 1.04, 1.08)
"""Scales that are tried for 4 bits, as parts of the one that puts the largest weight on a level."""

CHUNK_ELEMENTS = 1 << 20
"""Of a weight that torch quantises at a time; it takes 200 bytes for each."""


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """``w[n, k] = (value(codes[n, k]) - zeros[n, k // 32]) * scales[n, k // 32]``.

    Attributes:
        codes: ``[N, K]`` int8, contiguous: -128 to 127, or 0 to 15 for 4 bits.
        scales: ``[N, K / 32]`` (rounded up) bf16, contiguous.
        bits: of a code.
        levels: what 16 codes of 4 bits stand for: whole numbers that bf16 holds exactly.
        zeros: as `scales`, int8; None: all are 0. For 4 bits alone.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    bits: Bits
    levels: tuple[int, ...] = LEVELS
    zeros: torch.Tensor | None = None

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """``[N, K]``, each weight rounded to `dtype`."""
        dense = torch.empty(self.codes.shape, dtype=dtype, device=self.codes.device)
        levels = torch.tensor(self.levels, dtype=torch.float32, device=self.codes.device)
        for rows in _chunks(self.codes):
            codes = self.codes[rows]
            values = codes.float() if self.bits == 8 else levels[codes.long()]
            if self.zeros is not None:
                values -= self._spread(self.zeros[rows])
            dense[rows] = values * self._spread(self.scales[rows])
        return dense

    def _spread(self, by_group: torch.Tensor) -> torch.Tensor:
        """Return what is said for each group, ``[n, G]``, of every input, fp32."""
        return by_group.float().repeat_interleave(GROUP, 1)[:, : self.codes.shape[1]]


def held_bits(bits: Bits | None, *, has_zeros: bool = False) -> float:
    """Return the bits that a packed weight takes with its scale, and its zero point if any."""
    assert bits is not None, "a dense weight has no codes"
    return bits + (16 + 8 * has_zeros) / GROUP


def quantise(weight: torch.Tensor, bits: Bits) -> QuantisedWeight:
    """Quantise a weight ``[N, K]`` of any float dtype, on its own device.

    Not finite weights make those of their group NaN.
    """
    native = weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32)
    return (
        _natively(weight, bits) if native and native_library() else quantise_by_torch(weight, bits)
    )


def quantise_by_torch(weight: torch.Tensor, bits: Bits) -> QuantisedWeight:
    """As `quantise`, where there are no native operators; the reference of those."""
    parts = [_quantised_rows(weight[rows].float(), bits) for rows in _chunks(weight)]
    codes, scales = zip(*parts, strict=True)
    return QuantisedWeight(torch.cat(codes).contiguous(), torch.cat(scales).contiguous(), bits)


def levels_table(levels: Sequence[int] = LEVELS) -> torch.Tensor:
    """``[16]`` bf16."""
    return torch.tensor(levels, dtype=torch.bfloat16)


def _natively(weight: torch.Tensor, bits: Bits) -> QuantisedWeight:
    library = native_library()
    assert library is not None, "the caller has asked"
    weight, levels = weight.contiguous(), levels_table()
    num_rows, width = weight.shape
    codes = torch.empty(num_rows, width, dtype=torch.int8)
    scales = torch.empty(num_rows, -(-width // GROUP), dtype=torch.bfloat16)
    job = QuantiseJob(
        weight=weight.data_ptr(),
        levels=levels.data_ptr() if bits == 4 else None,
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        num_rows=num_rows,
        width=width,
        is_bf16=weight.dtype is torch.bfloat16,
    )
    library.quantise(library.threads(torch.get_num_threads()), job)
    return QuantisedWeight(codes, scales, bits)


def _quantised_rows(weight: torch.Tensor, bits: Bits) -> tuple[torch.Tensor, torch.Tensor]:
    width = weight.shape[1]
    groups = F.pad(weight, (0, -width % GROUP)).reshape(len(weight), -1, GROUP)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    if bits == 8:
        scales = (largest.abs() / 127).bfloat16()
        codes = (groups * (1 / scales.float())).round().clamp(-127, 127)
    else:
        codes, scales = _nearest_levels(groups, largest)
    is_finite = groups.isfinite().all(-1, keepdim=True)
    codes = torch.where(is_finite & (scales != 0), codes, 0.0).to(torch.int8)
    scales = scales.masked_fill(~is_finite, torch.nan)
    return codes.flatten(1)[:, :width], scales.squeeze(-1)


def _nearest_levels(
    groups: torch.Tensor, largest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes ``[N, G, 32]`` and scales ``[N, G, 1]`` with the least squared error."""
    levels = torch.tensor(LEVELS, dtype=torch.float32, device=groups.device)
    middles = (levels[1:] + levels[:-1]) / 2
    codes, scales = torch.zeros_like(groups), torch.zeros_like(largest, dtype=torch.bfloat16)
    least = torch.full_like(largest, torch.inf)
    for factor in FACTORS:
        tried = (largest / LEVELS[0] * factor).bfloat16()
        found = torch.bucketize((groups * (1 / tried.float())).contiguous(), middles)
        error = (levels[found] * tried.float() - groups).square().sum(-1, keepdim=True)
        is_better = (error < least) & (tried != 0)
        least = torch.where(is_better, error, least)
        codes = torch.where(is_better, found.float(), codes)
        scales = torch.where(is_better, tried, scales)
    return codes, scales


def _chunks(weight: torch.Tensor) -> Iterator[slice]:
    """Slices of rows with so many elements that what is computed of them stays small."""
    num_rows = max(1, CHUNK_ELEMENTS // max(1, weight.shape[1]))
    for first in range(0, weight.shape[0], num_rows):
        yield slice(first, first + num_rows)
