"""Low-rank adapters mixed in one batch. Reference: `reference.add_lora`.

Rows are sorted by adapter (`row_groups`), then shrunk and expanded by grouped matmuls, as S-LoRA
(https://arxiv.org/abs/2311.03285) and Punica (https://arxiv.org/abs/2310.18547) do.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.matmul.triton.matmul_tiles import grouped_rows
from pagoda_kernels.matmul.triton.row_groups import group_rows
from pagoda_kernels.matmul.triton.split_k import choose_num_splits
from pagoda_kernels.triton.launch import IS_INTERPRETED, next_power_of_2, on_device_of

MAX_BLOCK_R = 64
BLOCK_N = 128


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def lora_shrink_kernel(
    x_ptr,
    a_ptr,
    rank_ptr,
    partial_ptr,
    row_ptr,
    group_of_tile_ptr,
    num_tiles_ptr,
    num_rows,
    num_k,
    max_rank,
    num_splits,
    stride_xt,
    stride_al,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``partial[s, t, r] = sum_{k in split s} a[l, r, k] x[t, k]`` fp32, r below the rank of l.

    Tile [BLOCK_R, BLOCK_M]; grid (tiles of rows that share an adapter l, tiles of ranks, splits).
    """
    tile = tl.program_id(0)
    if tile >= tl.load(num_tiles_ptr):
        return
    adapter = tl.load(group_of_tile_ptr + tile).to(tl.int64)
    rank = tl.load(rank_ptr + adapter)
    first_rank = tl.program_id(1) * BLOCK_R
    if first_rank >= rank:
        return
    split = tl.program_id(2)
    # [BLOCK_M]
    row = tl.load(row_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_r = first_rank + tl.arange(0, BLOCK_R)
    mask_m = row < num_rows
    mask_r = offs_r < rank
    x_row = x_ptr + row * stride_xt
    a_row = a_ptr + adapter * stride_al + offs_r.to(tl.int64) * num_k
    split_steps = tl.cdiv(tl.cdiv(num_k, BLOCK_K), num_splits)
    begin = split * split_steps * BLOCK_K
    end = tl.minimum(begin + split_steps * BLOCK_K, num_k)
    acc = tl.zeros([BLOCK_R, BLOCK_M], dtype=tl.float32)
    for start in range(begin, end, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask_k = offs_k < end
        # [BLOCK_R, BLOCK_K]
        a = tl.load(
            a_row[:, None] + offs_k[None, :], mask=mask_r[:, None] & mask_k[None, :], other=0.0
        )
        # [BLOCK_K, BLOCK_M]
        x = tl.load(
            x_row[None, :] + offs_k[:, None], mask=mask_k[:, None] & mask_m[None, :], other=0.0
        )
        if UPCAST:
            a = a.to(tl.float32)
            x = x.to(tl.float32)
        acc = tl.dot(a, x, acc, input_precision="tf32x3")
    partial_row = (split.to(tl.int64) * num_rows + row) * max_rank
    tl.store(
        partial_ptr + partial_row[None, :] + offs_r[:, None],
        acc,
        mask=mask_r[:, None] & mask_m[None, :],
    )


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def lora_expand_kernel(
    partial_ptr,
    b_ptr,
    rank_ptr,
    scale_ptr,
    out_ptr,
    row_ptr,
    group_of_tile_ptr,
    num_tiles_ptr,
    num_rows,
    num_n,
    max_rank,
    num_splits,
    stride_bl,
    stride_ot,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """``out[t, n] += scale[l] sum_r b[l, n, r] sum_s partial[s, t, r]``.

    Tile [BLOCK_N, BLOCK_M]; grid (tiles of rows that share an adapter l, N tiles).
    """
    tile = tl.program_id(0)
    if tile >= tl.load(num_tiles_ptr):
        return
    adapter = tl.load(group_of_tile_ptr + tile).to(tl.int64)
    rank = tl.load(rank_ptr + adapter)
    if rank == 0:
        return
    # [BLOCK_M]
    row = tl.load(row_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m = row < num_rows
    mask_n = offs_n < num_n
    b_row = b_ptr + adapter * stride_bl + offs_n.to(tl.int64) * max_rank
    partial_row = partial_ptr + row * max_rank
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for first_rank in range(0, rank, BLOCK_R):
        offs_r = first_rank + tl.arange(0, BLOCK_R)
        mask_r = offs_r < rank
        mask = mask_r[:, None] & mask_m[None, :]
        shrunk = tl.zeros([BLOCK_R, BLOCK_M], dtype=tl.float32)
        split_row = partial_row
        for _ in range(num_splits):
            # [BLOCK_R, BLOCK_M]
            shrunk += tl.load(split_row[None, :] + offs_r[:, None], mask=mask, other=0.0)
            split_row += num_rows * max_rank
        # [BLOCK_N, BLOCK_R], masked by the largest rank, so that whole vectors are loaded
        mask_b = mask_n[:, None] & (offs_r < max_rank)[None, :]
        b = tl.load(b_row[:, None] + offs_r[None, :], mask=mask_b, other=0.0)
        b = tl.where(mask_r[None, :], b, 0.0)
        if UPCAST:
            b = b.to(tl.float32)
        acc = tl.dot(b, shrunk.to(b.dtype), acc, input_precision="tf32x3")
    out = out_ptr + (row * stride_ot)[None, :] + offs_n[:, None]
    mask = mask_n[:, None] & mask_m[None, :]
    # [BLOCK_N, BLOCK_M]
    base = tl.load(out, mask=mask, other=0.0)
    total = base.to(tl.float32) + acc * tl.load(scale_ptr + adapter)
    tl.store(out, total.to(base.dtype), mask=mask)


def add_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    adapters: torch.Tensor,
    ranks: torch.Tensor,
    scales: torch.Tensor,
    *,
    num_splits: int | None = None,
) -> None:
    """Launch sort, shrink and expand; arguments as `pagoda_kernels.add_lora`."""
    num_rows, num_k = x.shape
    num_adapters, max_rank = a.shape[:2]
    num_n = out.shape[1]
    if out.numel() == 0 or a.numel() == 0:
        return
    block_m = grouped_rows(num_rows, num_adapters)
    block_r = min(MAX_BLOCK_R, max(16, next_power_of_2(max_rank)))
    block_k = 128 if x.element_size() == 2 else 64
    groups = group_rows(adapters, num_adapters, block_m)
    tiles_r = triton.cdiv(max_rank, block_r)
    if num_splits is None:
        num_steps = triton.cdiv(num_k, block_k)
        num_tiles = groups.max_tiles * tiles_r
        num_splits = choose_num_splits(num_tiles, num_steps, block_m * block_r, x.device)
    partial = torch.empty(num_splits, num_rows, max_rank, dtype=torch.float32, device=x.device)
    with on_device_of(x):
        lora_shrink_kernel[(groups.max_tiles, tiles_r, num_splits)](
            x,
            a,
            ranks,
            partial,
            groups.rows,
            groups.group_of_tile,
            groups.num_tiles,
            num_rows,
            num_k,
            max_rank,
            num_splits,
            x.stride(0),
            a.stride(0),
            UPCAST=IS_INTERPRETED,
            BLOCK_M=block_m,
            BLOCK_R=block_r,
            BLOCK_K=block_k,
            num_warps=4,
            num_stages=3,
        )
        lora_expand_kernel[(groups.max_tiles, triton.cdiv(num_n, BLOCK_N))](
            partial,
            b,
            ranks,
            scales,
            out,
            groups.rows,
            groups.group_of_tile,
            groups.num_tiles,
            num_rows,
            num_n,
            max_rank,
            num_splits,
            b.stride(0),
            out.stride(0),
            UPCAST=IS_INTERPRETED,
            BLOCK_M=block_m,
            BLOCK_N=BLOCK_N,
            BLOCK_R=block_r,
            num_warps=4,
            num_stages=2,
        )
