"""Tensor descriptors of a paged cache, by which Hopper GPUs copy a tile with one instruction.

Knows when a cache suits them. Knows nothing of attention's arithmetic.
"""

from typing import Any, NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from pagoda_kernels.triton import launch
from pagoda_kernels.triton.launch import next_power_of_2
from pagoda_kernels.tuning import attention_shape, tuned

ALIGNMENT_BYTES = 16
"""Every stride but the last, and the base, must be a multiple of this."""


class Descriptors(NamedTuple):
    """Descriptors of K and V, None for a cache read by pointers, and the tile shape to run with."""

    k: Any
    v: Any
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def described_tile_shape(head_dim: int, block_size: int, device: torch.device) -> tuple[int, ...]:
    """(BLOCK_M, BLOCK_N, num_warps, num_stages) of the descriptor path, within 227 KiB of shared.

    As tuned, else reasoned, not measured: 128 query rows feed two warp groups; tiles of 128 keys
    halve the softmax rescaling against 64 where a block is that large and the accumulator leaves
    registers for it. Tiles of which rows do not see all keys stay with pointers: by descriptors
    they took Hopper past its registers. On warps that only copy, see
    benchmarks/results/compile/warp-specialisation.md.
    """
    block_n, num_stages = min(128, block_size), 2 if block_size >= 128 else 3
    if head_dim > 128:
        block_n, num_stages = 32, 3
    return tuned(
        "attention_prefill_described",
        f"{attention_shape(head_dim, 2)}, block {block_size}",
        device,
        BLOCK_M=128,
        BLOCK_N=block_n,
        num_warps=8,
        num_stages=num_stages,
    )


def describe(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    element_bytes: int,
    wanted: bool | None = None,
) -> Descriptors | None:
    """Descriptors of both caches ``[num_blocks, block_size, HK, D]``; None to read by pointers.

    None if the GPU has no bulk copies (`wanted` overrides this), a tile would span blocks, heads
    are wider than 256 dims, so that no tile fits, a cache is not aligned, or elements of q have
    four bytes, whose products take three passes anyway.
    """
    if wanted is None:
        wanted = launch.capability(k_cache.device) >= 90
    block_size, _, head_dim = k_cache.shape[1:]
    block_m, block_n, num_warps, num_stages = described_tile_shape(
        head_dim, block_size, k_cache.device
    )
    if (
        not wanted
        or head_dim > 256
        or element_bytes == 4
        or block_size < 64
        or block_size % block_n
    ):
        return None
    if not (_is_aligned(k_cache) and _is_aligned(v_cache)):
        return None
    tile = [1, block_n, 1, max(16, next_power_of_2(head_dim))]
    k, v = (
        TensorDescriptor(cache, list(cache.shape), list(cache.stride()), tile)
        for cache in (k_cache, v_cache)
    )
    return Descriptors(k, v, block_m, block_n, num_warps, num_stages)


def _is_aligned(cache: torch.Tensor) -> bool:
    strides = (stride * cache.element_size() for stride in cache.stride()[:3])
    starts_aligned = cache.data_ptr() % ALIGNMENT_BYTES == 0
    return (
        len(cache) > 0
        and starts_aligned
        and cache.stride(3) == 1
        and all(stride % ALIGNMENT_BYTES == 0 for stride in strides)
    )
