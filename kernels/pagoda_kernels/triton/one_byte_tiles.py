"""One-byte elements inside kernels: to floats and back, on GPUs with and without e4m3 conversions.

Knows how one element is encoded. Knows nothing of caches. Reference: `kv.quantisation`; the
format is E4M3 of Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.one_byte_dtypes import LARGEST
from pagoda_kernels.triton import launch
from pagoda_kernels.triton.one_byte_words import (
    e4m3_bits_to_fp16,
    e4m3_to_fp16,
    int8_to_float,
)

PLAIN: tl.constexpr = tl.constexpr(0)
"""Cache in the dtype of q."""

NATIVE: tl.constexpr = tl.constexpr(1)
"""int8, or e4m3 that the GPU converts itself."""

E4M3_BITS: tl.constexpr = tl.constexpr(2)
"""e4m3 taken apart bit by bit: GPUs before capability 8.9, and exact rounding when interpreted."""

ROUND_BY_ADDING: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2^23: adding it leaves no room for a fraction; the sum is rounded to the nearest even."""


@triton.jit
def dequantised(x, KV_KIND: tl.constexpr):
    """Exact value of cached elements, in fp16; PLAIN passes. NaN is not preserved."""
    if KV_KIND == E4M3_BITS:
        x = e4m3_bits_to_fp16(x) * 256.0
    elif KV_KIND == NATIVE:
        x = int8_to_float(x, tl.float16) if x.dtype == tl.int8 else e4m3_to_fp16(x)
    return x


@triton.jit
def _e4m3_bits(x):
    """Code of fp32 within +-448, rounded to the nearest even."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Three mantissa bits kept, exponent bias 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 codes are multiples of 2^-9, the distance of neighbours at 2^14.
    subnormal = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def quantised(x, inverse_scale, dtype: tl.constexpr, KV_KIND: tl.constexpr):
    """``round(clamp(x * inverse_scale))`` to the nearest even as `dtype`; PLAIN only converts."""
    if KV_KIND == PLAIN:
        stored = x.to(dtype)
    else:
        scaled = x.to(tl.float32) * inverse_scale
        largest: tl.constexpr = 127.0 if dtype == tl.int8 else 448.0
        scaled = tl.minimum(tl.maximum(scaled, -largest), largest)
        if KV_KIND == E4M3_BITS:
            stored = _e4m3_bits(scaled)
        else:
            if dtype == tl.int8:
                scaled = (scaled + ROUND_BY_ADDING) - ROUND_BY_ADDING
            stored = scaled.to(dtype)
    return stored


def converts_e4m3(device: torch.device) -> bool:
    """True if the GPU has instructions between e4m3 and wider floats."""
    return launch.capability(device) >= 89


def kernel_cache(cache: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The cache as a kernel takes it and its KV_KIND."""
    if cache.dtype not in LARGEST:
        return cache, PLAIN.value
    if cache.dtype == torch.int8 or converts_e4m3(cache.device):
        return cache, NATIVE.value
    return cache.view(torch.uint8), E4M3_BITS.value


def kernel_scale(scale: torch.Tensor | None, stand_in: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A scale and the distance of two heads in it; `stand_in` and 0 for a cache that is PLAIN."""
    if scale is None:
        return stand_in, 0
    return scale, 0 if len(scale) == 1 else scale.stride(0)
