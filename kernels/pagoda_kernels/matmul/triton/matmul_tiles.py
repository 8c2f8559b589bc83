"""Tile shapes of the quantised matmuls, chosen from the number of rows.

Up to 64 rows a matmul is bounded by reading the weight: tiles are narrow in M, and three to five
stages of 8-16 KB each keep about 50 KB per processor in flight, what bandwidth times latency asks
of an H200. Every tile reads its rows of x again, from a second cache that is not twice as fast as
memory: where those are half as many bytes as the weight's or more, Hopper takes tiles of 128 rows
of the weight, for which others lack the registers. Above, wide tiles reuse what they read.
Reasoned, not measured.
"""

from dataclasses import asdict, dataclass

import torch

from pagoda_kernels.triton import launch
from pagoda_kernels.tuning import tuned


@dataclass(frozen=True)
class MatmulTile:
    """Rows of x, rows of the weight and depth of one step, and how it is scheduled."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def byte_weight_tile(
    num_rows: int, element_bytes: int, device: torch.device, *, is_block_scaled: bool = False
) -> MatmulTile:
    """For weights of one byte and x of `element_bytes`; scaled blocks need two accumulators."""
    if element_bytes == 4:
        return MatmulTile(16 if num_rows <= 16 else 32, 64, 64, 4, 3)
    if num_rows <= 64:
        block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        column_bytes = element_bytes * block_m
        if column_bytes >= 64 and _is_hopper(device):
            return MatmulTile(block_m, 128, 128, 4, 4 if column_bytes == 64 else 3)
        return MatmulTile(block_m, 64, 128, 4, 5 if column_bytes <= 64 else 4)
    if element_bytes == 1:
        return MatmulTile(64 if is_block_scaled else 128, 128, 128, 8, 4)
    return MatmulTile(128, 128, 64, 8, 4)


def nibble_weight_tile(
    num_rows: int, element_bytes: int, group_size: int, device: torch.device
) -> MatmulTile:
    """For weights of half a byte, whose layout sets the depth of a step, not `block_k`."""
    if element_bytes == 4:
        return MatmulTile(16 if num_rows <= 16 else 32, 64, group_size, 4, 2)
    if num_rows <= 64:
        block_m = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        is_wide = block_m <= 32 or _is_hopper(device)
        return MatmulTile(block_m, 128 if is_wide else 64, group_size, 4, 4)
    return MatmulTile(64, 128, group_size, 8, 4)


def _is_hopper(device: torch.device) -> bool:
    return launch.capability(device) == 90


def grouped_rows(num_rows: int, num_groups: int) -> int:
    """Rows of a tile of rows that share a group: 16, 32 or 64, about as many as a group has.

    Sizes change where the average reaches a power of two, so a warm-up by powers of two meets all.
    """
    return min(64, max(16, 1 << (num_rows // num_groups).bit_length()))


def tuned_tile(
    op: str, num_rows: int, element_bytes: int, device: torch.device, default: MatmulTile
) -> MatmulTile:
    """The tile measured on this GPU for up to so many rows, or `default`."""
    return MatmulTile(*tuned(op, tile_key(num_rows, element_bytes), device, **asdict(default)))


def tile_key(num_rows: int, element_bytes: int) -> str:
    """Key of a tile: rows rounded up to 16, 32, 64 or many, and the width of x."""
    rows = next((f"{most} rows" for most in (16, 32, 64) if num_rows <= most), "many rows")
    return f"{rows}, {8 * element_bytes} bit"
