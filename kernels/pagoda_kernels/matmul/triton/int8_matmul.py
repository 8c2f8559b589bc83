"""Matmul with an int8 weight, widened on the way. Reference: `reference.quant_matmul`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.matmul.triton.matmul_tiles import byte_weight_tile, tuned_tile
from pagoda_kernels.matmul.triton.split_k import choose_num_splits, split_buffers, sum_splits
from pagoda_kernels.matmul.weights import Int8Weight
from pagoda_kernels.triton.launch import IS_INTERPRETED, on_device_of
from pagoda_kernels.triton.one_byte_words import int8_to_float


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def int8_matmul_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    num_rows,
    num_n,
    num_k,
    num_splits,
    stride_xm,
    stride_wn,
    stride_om,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``out[m, n] = scale[n] sum_k x[m, k] w[n, k]``; int8 is exact in every float dtype.

    Tile [BLOCK_N, BLOCK_M], weight first: it is widened in the registers the tensor core reads.
    Grid (M tiles, N tiles, splits of K).
    """
    tile_m = tl.program_id(0)
    tile_n = tl.program_id(1)
    split = tl.program_id(2)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m = offs_m < num_rows
    mask_n = offs_n < num_n
    x_row = x_ptr + offs_m.to(tl.int64) * stride_xm
    w_row = weight_ptr + offs_n.to(tl.int64) * stride_wn
    num_steps = tl.cdiv(num_k, BLOCK_K)
    split_steps = tl.cdiv(num_steps, num_splits)
    first = split * split_steps
    last = tl.minimum(first + split_steps, num_steps)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for step in range(first, last):
        offs_k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        mask_k = offs_k < num_k
        # [BLOCK_N, BLOCK_K]
        w = tl.load(
            w_row[:, None] + offs_k[None, :], mask=mask_n[:, None] & mask_k[None, :], other=0
        )
        # [BLOCK_K, BLOCK_M]
        x = tl.load(
            x_row[None, :] + offs_k[:, None], mask=mask_k[:, None] & mask_m[None, :], other=0.0
        )
        if UPCAST:
            x = x.to(tl.float32)
        acc = tl.dot(int8_to_float(w, x.dtype), x, acc, input_precision="tf32x3")
    is_last = split == 0
    if num_splits > 1:
        tile = tile_n * tl.num_programs(0) + tile_m
        acc, is_last = sum_splits(
            acc, partial_ptr, counter_ptr, tile, split, num_splits, BLOCK_N, BLOCK_M
        )
    # [BLOCK_N]
    scale = tl.load(scale_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + (offs_m.to(tl.int64) * stride_om)[None, :] + offs_n[:, None],
        (acc * scale[:, None]).to(out_ptr.dtype.element_ty),
        mask=mask_n[:, None] & mask_m[None, :] & is_last,
    )


def int8_matmul(
    x: torch.Tensor, weight: Int8Weight, out: torch.Tensor, *, num_splits: int | None = None
) -> None:
    """Fill `out` ``[M, N]``; arguments as `pagoda_kernels.matmul.quant_matmul`, already checked."""
    num_rows, num_k = x.shape
    num_n = weight.shape[0]
    if out.numel() == 0:
        return
    tile = byte_weight_tile(num_rows, x.element_size(), x.device)
    tile = tuned_tile("int8_matmul", num_rows, x.element_size(), x.device, tile)
    grid_m, grid_n = triton.cdiv(num_rows, tile.block_m), triton.cdiv(num_n, tile.block_n)
    tile_elements = tile.block_m * tile.block_n
    if num_splits is None:
        num_steps = triton.cdiv(num_k, tile.block_k)
        num_splits = choose_num_splits(grid_m * grid_n, num_steps, tile_elements, x.device)
    partial, counters = split_buffers(x.device, grid_m * grid_n, num_splits, tile_elements)
    with on_device_of(x):
        int8_matmul_kernel[(grid_m, grid_n, num_splits)](
            x,
            weight.values,
            weight.scales,
            out,
            partial,
            counters,
            num_rows,
            num_n,
            num_k,
            num_splits,
            x.stride(0),
            weight.values.stride(0),
            out.stride(0),
            UPCAST=IS_INTERPRETED,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
