"""Sorts rows by the weight they multiply, padded so that no tile of a grouped matmul mixes two.

Used for experts and for LoRA adapters. Stable, and without waiting for the device: sizes are upper
bounds known on the host, what exceeds the padded total is skipped by the matmuls.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

BLOCK_R = 1024
"""Rows looked at at once. Constant, so that no number of rows asks for another kernel."""


@dataclass(frozen=True)
class RowGroups:
    """Tiles of rows that share a group.

    Attributes:
        rows: ``[max_tiles * block_m]`` int32 row of every sorted position; `num_rows` for padding.
        group_of_tile: ``[max_tiles]`` int32.
        num_tiles: ``[1]`` int32, tiles in use.
        max_tiles: bound of `num_tiles` known on the host, the grid of a matmul.
    """

    rows: torch.Tensor
    group_of_tile: torch.Tensor
    num_tiles: torch.Tensor
    max_tiles: int


@triton.jit(do_not_specialize=["group_ptr", "num_rows"])
def count_rows_kernel(group_ptr, count_ptr, num_rows, BLOCK_R: tl.constexpr):
    """``count[g] = number of rows r with group[r] = g``; one program per group, tiles [BLOCK_R]."""
    group = tl.program_id(0)
    count = tl.zeros([BLOCK_R], dtype=tl.int32)
    for start in range(0, num_rows, BLOCK_R):
        offs_r = start + tl.arange(0, BLOCK_R)
        # [BLOCK_R]
        groups = tl.load(group_ptr + offs_r, mask=offs_r < num_rows, other=-1)
        count += (groups == group).to(tl.int32)
    tl.store(count_ptr + group, tl.sum(count, axis=0))


@triton.jit(do_not_specialize=["group_ptr", "num_rows"])
def place_rows_kernel(
    group_ptr,
    count_ptr,
    row_ptr,
    group_of_tile_ptr,
    num_tiles_ptr,
    num_rows,
    num_groups,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """Write the rows of one group, in order, to its tiles, then padding to a multiple of BLOCK_M.

    ``first tile of g = sum_{h < g} ceil(count[h] / BLOCK_M)``. One program per group; tiles
    [BLOCK_R] of rows and [BLOCK_G] of counts. Program 0 also writes the number of tiles.
    """
    group = tl.program_id(0)
    offs_g = tl.arange(0, BLOCK_G)
    # [BLOCK_G]
    counts = tl.load(count_ptr + offs_g, mask=offs_g < num_groups, other=0)
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    if group == 0:
        tl.store(num_tiles_ptr, tl.sum(tiles, axis=0))
    first_tile = tl.sum(tl.where(offs_g < group, tiles, 0), axis=0)
    own_tiles = tl.sum(tl.where(offs_g == group, tiles, 0), axis=0)
    begin = first_tile * BLOCK_M
    end = begin + own_tiles * BLOCK_M
    if own_tiles > 0:
        position = begin
        for start in range(0, num_rows, BLOCK_R):
            offs_r = start + tl.arange(0, BLOCK_R)
            # [BLOCK_R]
            groups = tl.load(group_ptr + offs_r, mask=offs_r < num_rows, other=-1)
            is_own = (groups == group).to(tl.int32)
            rank = tl.cumsum(is_own, axis=0) - is_own
            tl.store(row_ptr + position + rank, offs_r, mask=is_own > 0)
            position += tl.sum(is_own, axis=0)
        offs_m = position + tl.arange(0, BLOCK_M)
        padding = tl.zeros([BLOCK_M], dtype=tl.int32) + num_rows
        tl.store(row_ptr + offs_m, padding, mask=offs_m < end)
        for tile in range(first_tile, first_tile + own_tiles):
            tl.store(group_of_tile_ptr + tile, group)


def group_rows(groups: torch.Tensor, num_groups: int, block_m: int) -> RowGroups:
    """Sort rows by `groups` ``[R]`` int32; groups outside ``[0, num_groups)`` are dropped."""
    num_rows = groups.numel()
    max_tiles = num_rows // block_m + min(num_groups, num_rows)
    device = groups.device
    counts = torch.empty(num_groups, dtype=torch.int32, device=device)
    rows = torch.empty(max_tiles * block_m, dtype=torch.int32, device=device)
    group_of_tile = torch.empty(max_tiles, dtype=torch.int32, device=device)
    num_tiles = torch.empty(1, dtype=torch.int32, device=device)
    with on_device_of(groups):
        count_rows_kernel[(num_groups,)](groups, counts, num_rows, BLOCK_R=BLOCK_R)
        place_rows_kernel[(num_groups,)](
            groups,
            counts,
            rows,
            group_of_tile,
            num_tiles,
            num_rows,
            num_groups,
            BLOCK_M=block_m,
            BLOCK_R=BLOCK_R,
            BLOCK_G=next_power_of_2(num_groups),
        )
    return RowGroups(rows, group_of_tile, num_tiles, max_tiles)
