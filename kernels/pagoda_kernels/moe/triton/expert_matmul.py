"""The two grouped matmuls of a mixture of experts. Reference: `reference.fused_moe`.

Tiles are [BLOCK_N, BLOCK_M], weight first: few rows per expert are the narrow side of the tensor
core. A tile belongs to one expert (`row_groups`), its rows are gathered.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from pagoda_kernels.gate.triton.gelu_mul import TWICE_SQRT_2_OVER_PI
from pagoda_kernels.triton.one_byte_words import e4m3_bits_to_fp16, e4m3_to_fp16

UNSCALED: tl.constexpr = tl.constexpr(0)
"""Weights in the dtype of x."""

NATIVE: tl.constexpr = tl.constexpr(1)
"""e4m3 with block scales, converted by the GPU."""

EMULATED: tl.constexpr = tl.constexpr(2)
"""e4m3 with block scales, as uint8, taken apart bit by bit."""


@triton.jit
def _widened(w, dtype: tl.constexpr, WEIGHT_KIND: tl.constexpr):
    """Stored weights as `dtype`; e4m3 is exact, except for a factor 1 / 256 if EMULATED.

    By way of fp16 and fp32: straight from fp16 to bf16 is a conversion for each element.
    """
    if WEIGHT_KIND == EMULATED:
        return e4m3_bits_to_fp16(w).to(tl.float32).to(dtype)
    if WEIGHT_KIND == NATIVE:
        return e4m3_to_fp16(w).to(tl.float32).to(dtype)
    return w.to(dtype)


@triton.jit
def _block_scale(scale_row, k, num_k, mask, WEIGHT_KIND: tl.constexpr):
    """Scales [BLOCK_N] of the 128 columns that k lies in; 0 beyond the last column.

    Loaded a step ahead: the pipeliner only sees to loads that feed a product.
    """
    scale = tl.load(scale_row + k // 128, mask=mask & (k < num_k), other=0.0)
    if WEIGHT_KIND == EMULATED:
        scale *= 256.0
    return scale


@triton.jit(do_not_specialize=["num_rows"])
def moe_gate_up_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    row_ptr,
    group_of_tile_ptr,
    num_tiles_ptr,
    num_rows,
    width,
    num_k,
    stride_xt,
    stride_we,
    stride_wn,
    stride_se,
    stride_sn,
    limit,
    alpha,
    TOP_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_CLAMPED: tl.constexpr,
    IS_GELU: tl.constexpr,
    WEIGHT_KIND: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``out[r] = silu(gate_e x[r // TOP_K]) * up_e x[r // TOP_K]`` for the rows r of expert e.

    With HAS_BIAS both products have one; with IS_CLAMPED the gate is that of `ClampedSwiglu`, with
    IS_GELU it is that of `gelu_mul_kernel` with IS_TANH.
    Grid (tiles, N tiles of the width). One program makes a tile of the gate and the same tile of
    up, so that their product needs no second pass.
    """
    tile = tl.program_id(0)
    if tile >= tl.load(num_tiles_ptr):
        return
    expert = tl.load(group_of_tile_ptr + tile).to(tl.int64)
    # [BLOCK_M]
    row = tl.load(row_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m = row < num_rows
    mask_n = offs_n < width
    x_row = x_ptr + row // TOP_K * stride_xt
    w_expert = weight_ptr + expert * stride_we
    gate_row = w_expert + offs_n.to(tl.int64) * stride_wn
    up_row = w_expert + (width + offs_n).to(tl.int64) * stride_wn
    gate_scale_row = scale_ptr + expert * stride_se + offs_n // 128 * stride_sn
    up_scale_row = scale_ptr + expert * stride_se + (width + offs_n) // 128 * stride_sn
    gate = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    if WEIGHT_KIND != UNSCALED:
        gate_scale = _block_scale(gate_scale_row, 0, num_k, mask_n, WEIGHT_KIND)
        up_scale = _block_scale(up_scale_row, 0, num_k, mask_n, WEIGHT_KIND)
    for start in range(0, num_k, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask_k = offs_k < num_k
        mask_w = mask_n[:, None] & mask_k[None, :]
        # [BLOCK_N, BLOCK_K]
        w_gate = tl.load(gate_row[:, None] + offs_k[None, :], mask=mask_w, other=0.0)
        w_up = tl.load(up_row[:, None] + offs_k[None, :], mask=mask_w, other=0.0)
        # [BLOCK_K, BLOCK_M]
        x = tl.load(
            x_row[None, :] + offs_k[:, None], mask=mask_k[:, None] & mask_m[None, :], other=0.0
        )
        if UPCAST:
            x = x.to(tl.float32)
        w_gate = _widened(w_gate, x.dtype, WEIGHT_KIND)
        w_up = _widened(w_up, x.dtype, WEIGHT_KIND)
        if WEIGHT_KIND == UNSCALED:
            gate = tl.dot(w_gate, x, gate, input_precision="tf32x3")
            up = tl.dot(w_up, x, up, input_precision="tf32x3")
        else:
            after = start + BLOCK_K
            next_gate_scale = _block_scale(gate_scale_row, after, num_k, mask_n, WEIGHT_KIND)
            next_up_scale = _block_scale(up_scale_row, after, num_k, mask_n, WEIGHT_KIND)
            gate += tl.dot(w_gate, x, input_precision="tf32x3") * gate_scale[:, None]
            up += tl.dot(w_up, x, input_precision="tf32x3") * up_scale[:, None]
            gate_scale = next_gate_scale
            up_scale = next_up_scale
    if HAS_BIAS:
        bias_row = bias_ptr + expert * (2 * width) + offs_n
        gate += tl.load(bias_row, mask=mask_n, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias_row + width, mask=mask_n, other=0.0).to(tl.float32)[:, None]
    if IS_CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        gated = gate * tl.sigmoid(gate * alpha) * (up + 1.0)
    elif IS_GELU:
        inner = gate * TWICE_SQRT_2_OVER_PI * (1.0 + 0.044715 * gate * gate)
        gated = gate * tl.sigmoid(tl.maximum(inner, -80.0)) * up  # exp must not overflow
    else:
        gated = gate * tl.sigmoid(gate) * up
    tl.store(
        out_ptr + (row * width)[None, :] + offs_n[:, None],
        gated.to(out_ptr.dtype.element_ty),
        mask=mask_n[:, None] & mask_m[None, :],
    )


@triton.jit(do_not_specialize=["num_rows"])
def moe_down_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    routing_ptr,
    out_ptr,
    row_ptr,
    group_of_tile_ptr,
    num_tiles_ptr,
    num_rows,
    num_n,
    num_k,
    stride_we,
    stride_wn,
    stride_se,
    stride_sn,
    HAS_BIAS: tl.constexpr,
    WEIGHT_KIND: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``out[r] = routing[r] * down_e x[r]`` for the rows r of expert e; grid (tiles, N tiles).

    With HAS_BIAS the product has one, `routing` counts it too.
    """
    tile = tl.program_id(0)
    if tile >= tl.load(num_tiles_ptr):
        return
    expert = tl.load(group_of_tile_ptr + tile).to(tl.int64)
    # [BLOCK_M]
    row = tl.load(row_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m = row < num_rows
    mask_n = offs_n < num_n
    x_row = x_ptr + row * num_k
    w_row = weight_ptr + expert * stride_we + offs_n.to(tl.int64) * stride_wn
    scale_row = scale_ptr + expert * stride_se + offs_n // 128 * stride_sn
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    if WEIGHT_KIND != UNSCALED:
        scale = _block_scale(scale_row, 0, num_k, mask_n, WEIGHT_KIND)
    for start in range(0, num_k, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask_k = offs_k < num_k
        # [BLOCK_N, BLOCK_K]
        w = tl.load(
            w_row[:, None] + offs_k[None, :], mask=mask_n[:, None] & mask_k[None, :], other=0.0
        )
        # [BLOCK_K, BLOCK_M]
        x = tl.load(
            x_row[None, :] + offs_k[:, None], mask=mask_k[:, None] & mask_m[None, :], other=0.0
        )
        if UPCAST:
            x = x.to(tl.float32)
        w = _widened(w, x.dtype, WEIGHT_KIND)
        if WEIGHT_KIND == UNSCALED:
            acc = tl.dot(w, x, acc, input_precision="tf32x3")
        else:
            next_scale = _block_scale(scale_row, start + BLOCK_K, num_k, mask_n, WEIGHT_KIND)
            acc += tl.dot(w, x, input_precision="tf32x3") * scale[:, None]
            scale = next_scale
    if HAS_BIAS:
        bias = tl.load(bias_ptr + expert * num_n + offs_n, mask=mask_n, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    # [BLOCK_M]
    routing = tl.load(routing_ptr + row, mask=mask_m, other=0.0)
    tl.store(
        out_ptr + (row * num_n)[None, :] + offs_n[:, None],
        (acc * routing[None, :]).to(out_ptr.dtype.element_ty),
        mask=mask_n[:, None] & mask_m[None, :],
    )


@triton.jit
def moe_sum_kernel(
    part_ptr,
    expert_ptr,
    out_ptr,
    hidden,
    num_experts,
    TOP_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """``out[t] = sum_j part[t, j]`` over experts that are here; grid (T, tiles of the hidden dim).

    Tile [BLOCK_K, BLOCK_H].
    """
    token = tl.program_id(0).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    row = token * TOP_K + offs_k
    # [BLOCK_K]
    expert = tl.load(expert_ptr + row, mask=offs_k < TOP_K, other=-1)
    is_here = (expert >= 0) & (expert < num_experts)
    mask_h = offs_h < hidden
    # [BLOCK_K, BLOCK_H]
    part = tl.load(
        part_ptr + (row * hidden)[:, None] + offs_h[None, :],
        mask=is_here[:, None] & mask_h[None, :],
        other=0.0,
    )
    total = tl.sum(part.to(tl.float32), axis=0)
    tl.store(out_ptr + token * hidden + offs_h, total.to(out_ptr.dtype.element_ty), mask=mask_h)
