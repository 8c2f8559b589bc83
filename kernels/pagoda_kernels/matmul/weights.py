"""Quantised weights of a linear layer, as the matmuls read them, and their fp32 meaning.

Knows layouts and scales. Knows nothing of checkpoints (see `pack`) or of activations.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
"""Largest finite e4m3 value."""

FP8_BLOCK = 128
"""Side of a block that shares a scale; activations share along K only (as DeepSeek-V3)."""

_Cache = dict[object, torch.Tensor]


def _new_cache() -> _Cache:
    return {}


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """``w[n, k] = values[n, k] * scales[n]``.

    Attributes:
        values: ``[N, K]`` int8, contiguous.
        scales: ``[N]`` float.
    """

    values: torch.Tensor
    scales: torch.Tensor
    cache: _Cache = field(default_factory=_new_cache, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1]

    def dequantised(self) -> torch.Tensor:
        """``[N, K]`` fp32."""
        return self.values.float() * self.scales.float()[:, None]


@dataclass(frozen=True, eq=False)
class Int4Weight:
    """``w[n, k] = (nibble[n, k] - zeros[g, n]) * scales[g, n]`` with ``g = k // group_size``.

    A step is a group, or two of 32. Word j of a step of one row holds k = i * step / 4 + j in its
    bits ``[4 i, 4 i + 4)``: one shift and one mask turn pairs of words into pairs of neighbours,
    the four quarters multiply dense columns of x, and a tile is one run of memory.

    Attributes:
        packed: ``[K / step, N, step / 4]`` int16, contiguous.
        scales: ``[K / group_size, N]`` float.
        zeros: ``[K / group_size, N]``, dtype of scales, whole numbers.
        order: ``[K]`` int64, column of x that row k multiplies (GPTQ act-order); None if k itself.
    """

    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None = None
    cache: _Cache = field(default_factory=_new_cache, repr=False)

    @property
    def group_size(self) -> int:
        """Consecutive k that share a scale: 32, 64 or 128."""
        return self.shape[1] // len(self.scales)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        num_steps, num_n, num_words = self.packed.shape
        return num_n, num_steps * num_words * 4

    def nibbles(self) -> torch.Tensor:
        """``[N, K]`` int16 in 0..15."""
        quarters = [(self.packed >> shift) & 0xF for shift in (0, 4, 8, 12)]
        return torch.cat(quarters, -1).permute(1, 0, 2).reshape(self.shape)

    def dequantised(self) -> torch.Tensor:
        """``[N, K]`` fp32, columns in the order of x."""
        scales, zeros = (
            tensor.float().T.repeat_interleave(self.group_size, 1)
            for tensor in (self.scales, self.zeros)
        )
        weight = (self.nibbles().float() - zeros) * scales
        if self.order is None:
            return weight
        unordered = torch.zeros_like(weight)
        unordered[:, self.order] = weight
        return unordered


@dataclass(frozen=True, eq=False)
class Fp8Weight:
    """``w[n, k] = values[n, k] * scale``, one scale per tensor, per channel n or per 128x128 block.

    Attributes:
        values: ``[N, K]`` float8_e4m3fn, contiguous.
        scales: fp32; ``[1]`` per tensor, ``[N]`` per channel, ``[N / 128, K / 128]`` (rounded up)
            per block.
    """

    values: torch.Tensor
    scales: torch.Tensor
    cache: _Cache = field(default_factory=_new_cache, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def is_block_scaled(self) -> bool:
        """Scales are per 128x128 block."""
        return self.scales.dim() == 2

    def dequantised(self) -> torch.Tensor:
        """``[N, K]`` fp32."""
        wide = self.values.float()
        if not self.is_block_scaled:
            return wide * self.scales[:, None]
        return wide * spread_blocks(self.scales, *self.shape)


QuantWeight = Int8Weight | Int4Weight | Fp8Weight


def spread_blocks(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """``[..., rows, columns]`` from one scale per block of 128x128."""
    spread = scales.repeat_interleave(FP8_BLOCK, -2).repeat_interleave(FP8_BLOCK, -1)
    return spread[..., :rows, :columns]


def cached(cache: _Cache, key: object, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What `make` returned when `key` was first asked for; lives as long as the weight."""
    if key not in cache:
        cache[key] = make()
    return cache[key]
