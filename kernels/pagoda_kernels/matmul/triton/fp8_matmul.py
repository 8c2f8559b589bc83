"""Matmul of fp8 activations and an fp8 weight. Reference: `reference.quant_matmul`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.matmul.triton.matmul_tiles import byte_weight_tile, tuned_tile
from pagoda_kernels.matmul.triton.split_k import choose_num_splits, split_buffers, sum_splits
from pagoda_kernels.matmul.weights import FP8_BLOCK, Fp8Weight
from pagoda_kernels.triton.launch import IS_INTERPRETED, on_device_of
from pagoda_kernels.triton.one_byte_tiles import converts_e4m3
from pagoda_kernels.triton.one_byte_words import e4m3_bits_to_fp16

EMULATED_SCALE: tl.constexpr = tl.constexpr(65536.0)
"""Product of the factors 256 that `e4m3_bits_to_fp16` leaves out of both operands."""


@triton.jit(do_not_specialize=["num_rows", "num_splits", "stride_xsm"])
def fp8_matmul_kernel(
    x_ptr,
    weight_ptr,
    x_scale_ptr,
    w_scale_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    num_rows,
    num_n,
    num_k,
    num_splits,
    stride_xm,
    stride_wn,
    stride_xsm,
    stride_wsn,
    stride_om,
    IS_BLOCK_SCALED: tl.constexpr,
    EMULATE: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``out[m, n] = x_scale[m] w_scale[n] sum_k x[m, k] w[n, k]``, or scales within the sum.

    IS_BLOCK_SCALED: a scale per BLOCK_K = 128 columns of a row of x, and per 128x128 block of w.
    Tile [BLOCK_N, BLOCK_M], weight first: few rows of x are the narrow side of the tensor core.
    Grid (M tiles, N tiles, splits of K). EMULATE: bits as uint8, for GPUs without fp8 arithmetic.
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
    xs_row = x_scale_ptr + offs_m.to(tl.int64) * stride_xsm
    ws_row = w_scale_ptr + tile_n * BLOCK_N // 128 * stride_wsn
    if IS_BLOCK_SCALED:
        # [BLOCK_M], loaded a step ahead: the pipeliner only sees to loads that feed a product
        x_scale = tl.load(xs_row + first, mask=mask_m & (first < last), other=0.0)
        w_scale = tl.load(ws_row + first, mask=first < last, other=0.0)
    for step in range(first, last):
        offs_k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        mask_k = offs_k < num_k
        # [BLOCK_N, BLOCK_K]
        w = tl.load(
            w_row[:, None] + offs_k[None, :], mask=mask_n[:, None] & mask_k[None, :], other=0.0
        )
        # [BLOCK_K, BLOCK_M]
        x = tl.load(
            x_row[None, :] + offs_k[:, None], mask=mask_k[:, None] & mask_m[None, :], other=0.0
        )
        if EMULATE:
            w = e4m3_bits_to_fp16(w)
            x = e4m3_bits_to_fp16(x)
        if UPCAST:
            w = w.to(tl.float32)
            x = x.to(tl.float32)
        if IS_BLOCK_SCALED:
            is_more = step + 1 < last
            next_x_scale = tl.load(xs_row + step + 1, mask=mask_m & is_more, other=0.0)
            next_w_scale = tl.load(ws_row + step + 1, mask=is_more, other=0.0)
            acc += tl.dot(w, x) * (w_scale * x_scale)[None, :]
            x_scale = next_x_scale
            w_scale = next_w_scale
        else:
            acc = tl.dot(w, x, acc, max_num_imprecise_acc=128)  # Hopper adds fp8 in 14 bits
    is_last = split == 0
    if num_splits > 1:
        tile = tile_n * tl.num_programs(0) + tile_m
        acc, is_last = sum_splits(
            acc, partial_ptr, counter_ptr, tile, split, num_splits, BLOCK_N, BLOCK_M
        )
    if EMULATE:
        acc *= EMULATED_SCALE
    if not IS_BLOCK_SCALED:
        # [BLOCK_M], [BLOCK_N]
        x_scale = tl.load(xs_row, mask=mask_m, other=0.0)
        w_scale = tl.load(w_scale_ptr + offs_n * stride_wsn, mask=mask_n, other=0.0)
        acc = acc * x_scale[None, :] * w_scale[:, None]
    tl.store(
        out_ptr + (offs_m.to(tl.int64) * stride_om)[None, :] + offs_n[:, None],
        acc.to(out_ptr.dtype.element_ty),
        mask=mask_n[:, None] & mask_m[None, :] & is_last,
    )


def fp8_matmul(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: Fp8Weight,
    out: torch.Tensor,
    *,
    num_splits: int | None = None,
    is_emulated: bool | None = None,
) -> None:
    """Fill `out` ``[M, N]``; arguments as `pagoda_kernels.fp8_matmul`, already checked."""
    num_rows, num_k = x.shape
    num_n = weight.shape[0]
    if out.numel() == 0:
        return
    if is_emulated is None:
        is_emulated = not converts_e4m3(x.device)
    tile = byte_weight_tile(num_rows, 1, x.device, is_block_scaled=weight.is_block_scaled)
    op = "fp8_matmul block" if weight.is_block_scaled else "fp8_matmul"
    tile = tuned_tile(op, num_rows, 1, x.device, tile)
    if weight.is_block_scaled:  # a tile and a step have one scale
        assert tile.block_k == FP8_BLOCK
        assert FP8_BLOCK % tile.block_n == 0
    grid_m, grid_n = triton.cdiv(num_rows, tile.block_m), triton.cdiv(num_n, tile.block_n)
    tile_elements = tile.block_m * tile.block_n
    if num_splits is None:
        num_steps = triton.cdiv(num_k, tile.block_k)
        num_splits = choose_num_splits(grid_m * grid_n, num_steps, tile_elements, x.device)
    partial, counters = split_buffers(x.device, grid_m * grid_n, num_splits, tile_elements)
    values = weight.values
    if weight.is_block_scaled:
        stride_xsm, stride_wsn = x_scale.stride(0), weight.scales.stride(0)
    else:
        stride_xsm, stride_wsn = int(x_scale.numel() > 1), int(weight.scales.numel() > 1)
    with on_device_of(x):
        fp8_matmul_kernel[(grid_m, grid_n, num_splits)](
            x.view(torch.uint8) if is_emulated else x,
            values.view(torch.uint8) if is_emulated else values,
            x_scale,
            weight.scales,
            out,
            partial,
            counters,
            num_rows,
            num_n,
            num_k,
            num_splits,
            x.stride(0),
            values.stride(0),
            stride_xsm,
            stride_wsn,
            out.stride(0),
            IS_BLOCK_SCALED=weight.is_block_scaled,
            EMULATE=is_emulated,
            UPCAST=IS_INTERPRETED,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            BLOCK_K=tile.block_k,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
