"""Tile shapes of latent attention by GPU: as tuned, else reasoned from compile reports.

Knows registers and shared memory. Knows nothing of the kernels' arithmetic.
"""

import torch

from pagoda_kernels.triton import launch
from pagoda_kernels.tuning import tuned


def decode_tile(
    num_heads: int, rank: int, element_bytes: int, device: torch.device
) -> tuple[int, ...]:
    """(BLOCK_H, BLOCK_N, num_warps, num_stages) of absorbed attention.

    Latents are read, from L2 at best, once per BLOCK_H heads: at 128 heads the arithmetic is the
    limit and wants whole warp groups, at 16 heads the bytes are. The accumulator [BLOCK_H, rank] in
    fp32 has to stay in registers, which 64 heads only do by Hopper's warp-group products, whose
    operands come from shared memory. Five stages buffer the latents twice, since the load of a
    block id comes before theirs; three buffer them once. fp32 is for proofs, not for speed.
    """
    if element_bytes == 4:
        tile = 16, 16, 8, 3
    elif num_heads <= 16:
        tile = 16, 32, 4, 5
    elif num_heads >= 64 and launch.capability(device) == 90:
        tile = 64, 32, 8, 5
    else:
        tile = 32, 32, 8, 3 if launch.has_little_shared_memory(device) else 5
    shape = f"heads {num_heads}, rank {rank}, {element_bytes} bytes"
    return _tuned("mla_decode", shape, device, "BLOCK_H", tile)


def prefill_tile(
    head_dim: int, head_dim_v: int, element_bytes: int, device: torch.device
) -> tuple[int, ...]:
    """(BLOCK_M, BLOCK_N, num_warps, num_stages) of attention over expanded K and V.

    Half as many keys where q, an operand of every product, stays in registers, and where heads of
    256 dims (GLM-4.7-Flash) fill those and the shared memory.
    """
    has_room = launch.capability(device) >= 90 and not launch.has_little_shared_memory(device)
    if element_bytes == 4:
        tile = 16, 16, 4, 2
    elif head_dim > 192:
        tile = 128 if has_room else 64, 32, 8, 2
    else:
        tile = 128, 64 if has_room else 32, 8, 3
    shape = f"head_dim {head_dim} and {head_dim_v}, {element_bytes} bytes"
    return _tuned("mla_prefill", shape, device, "BLOCK_M", tile)


def _tuned(
    op: str, shape: str, device: torch.device, rows: str, tile: tuple[int, int, int, int]
) -> tuple[int, ...]:
    names = rows, "BLOCK_N", "num_warps", "num_stages"
    return tuned(op, shape, device, **dict(zip(names, tile, strict=True)))
