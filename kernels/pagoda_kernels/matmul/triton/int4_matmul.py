"""Matmul with a grouped int4 weight, widened on the way.

Reference: `reference.quant_matmul`.
The nibbles reach tensor cores as in Kim et al., "Who says elephants can't run", 2022, and Marlin
(Frantar et al., https://arxiv.org/abs/2408.11743): OR-ed into the mantissa of a float constant.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.matmul.triton.matmul_tiles import nibble_weight_tile, tuned_tile
from pagoda_kernels.matmul.triton.split_k import choose_num_splits, split_buffers, sum_splits
from pagoda_kernels.matmul.weights import Int4Weight
from pagoda_kernels.triton.launch import IS_INTERPRETED, on_device_of

NIBBLES_TO_FLOATS = """{
.reg .b32 words, shifted;
mov.b32 words, $4;
lop3.b32 $0, words, 0x000F000F, TOP, 0xEA;
shr.u32 shifted, words, 4;
lop3.b32 $1, shifted, 0x000F000F, TOP, 0xEA;
shr.u32 shifted, words, 8;
lop3.b32 $2, shifted, 0x000F000F, TOP, 0xEA;
shr.u32 shifted, words, 12;
lop3.b32 $3, shifted, 0x000F000F, TOP, 0xEA;
}"""
"""``(words >> 4 i) & 0xF | TOP`` of two words at a time, i from 0 to 3.

The operand may share a register with a result, so it is read before a result is written.
"""

TO_FP16: tl.constexpr = tl.constexpr(NIBBLES_TO_FLOATS.replace("TOP", "0x64006400"))
TO_BF16: tl.constexpr = tl.constexpr(NIBBLES_TO_FLOATS.replace("TOP", "0x43004300"))


@triton.jit
def _nibble(words, SHIFT: tl.constexpr, dtype: tl.constexpr):
    """One nibble of words in fp32, by way of the same bits as the assembly."""
    nibble = (words >> SHIFT) & 0xF
    if dtype == tl.float16:
        return (nibble | 0x6400).to(tl.float16, bitcast=True).to(tl.float32)
    if dtype == tl.bfloat16:
        return (nibble | 0x4300).to(tl.bfloat16, bitcast=True).to(tl.float32)
    return nibble.to(tl.float32)


@triton.jit
def biased_nibbles(words, dtype: tl.constexpr, UPCAST: tl.constexpr):
    """The four nibbles of words [N, K] int16, plus a bias, exact in `dtype`.

    In fp16 the bits 0x6400 | q are 1024 + q, in bf16 0x4300 | q are 128 + q. Two words at a time
    take half the instructions of one, which bound a decode; the interpreter, which knows no
    assembly, works on single words.
    """
    if UPCAST or dtype == tl.float32:
        q0 = _nibble(words, 0, dtype)
        q1 = _nibble(words, 4, dtype)
        q2 = _nibble(words, 8, dtype)
        q3 = _nibble(words, 12, dtype)
    else:
        asm: tl.constexpr = TO_FP16 if dtype == tl.float16 else TO_BF16
        bits: tl.constexpr = (tl.int16, tl.int16, tl.int16, tl.int16)
        q0, q1, q2, q3 = tl.inline_asm_elementwise(
            asm, "=r,=r,=r,=r,r", [words], dtype=bits, is_pure=True, pack=2
        )
        q0 = q0.to(dtype, bitcast=True)
        q1 = q1.to(dtype, bitcast=True)
        q2 = q2.to(dtype, bitcast=True)
        q3 = q3.to(dtype, bitcast=True)
    return q0, q1, q2, q3


@triton.jit
def biased_zero(zero_ptr, mask, dtype: tl.constexpr, UPCAST: tl.constexpr):
    """Zeros [N, 1] plus the bias of `biased_nibbles`, in the dtype of its results."""
    zero = tl.load(zero_ptr, mask=mask, other=0.0).to(tl.float32)[:, None]
    if dtype == tl.float16:
        zero += 1024.0
    elif dtype == tl.bfloat16:
        zero += 128.0
    return zero if UPCAST else zero.to(dtype)


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def int4_matmul_kernel(
    x_ptr,
    packed_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    num_rows,
    num_n,
    num_steps,
    num_splits,
    stride_xm,
    stride_om,
    UPCAST: tl.constexpr,
    GROUPS: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """``out[m, n] = sum_g scale[g, n] sum_{k in g} x[m, k] (q[n, k] - zero[g, n])``.

    Tile [BLOCK_N, BLOCK_M], weight first; a step is GROUPS groups (1 or 2) in 4 NUM_WORDS columns,
    four products of depth NUM_WORDS. Grid (M tiles, N tiles, splits of K).
    """
    tile_m = tl.program_id(0)
    tile_n = tl.program_id(1)
    split = tl.program_id(2)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_w = tl.arange(0, NUM_WORDS)
    mask_m = offs_m < num_rows
    mask_n = offs_n < num_n
    mask_x = mask_m[None, :]
    row_n = tl.minimum(offs_n, num_n - 1)  # what is loaded twice is not stored
    dtype = x_ptr.dtype.element_ty
    x_row = x_ptr + offs_m.to(tl.int64) * stride_xm
    split_steps = tl.cdiv(num_steps, num_splits)
    first = split * split_steps
    last = tl.minimum(first + split_steps, num_steps)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    # [BLOCK_N], loaded a step ahead: the pipeliner only sees to loads that feed a product
    scale = tl.load(
        scale_ptr + first * GROUPS * num_n + offs_n, mask=mask_n & (first < last), other=0.0
    )
    for step in range(first, last):
        group_row = step * GROUPS * num_n + offs_n
        next_scale = tl.load(
            scale_ptr + group_row + GROUPS * num_n, mask=mask_n & (step + 1 < last), other=0.0
        )
        row = row_n.to(tl.int64) + step * num_n
        # [BLOCK_N, NUM_WORDS]
        words = tl.load(packed_ptr + (row * NUM_WORDS)[:, None] + offs_w[None, :])
        x_step = x_row[None, :] + (step * (4 * NUM_WORDS) + offs_w)[:, None]
        # [NUM_WORDS, BLOCK_M]
        x0 = tl.load(x_step, mask=mask_x, other=0.0)
        x1 = tl.load(x_step + NUM_WORDS, mask=mask_x, other=0.0)
        x2 = tl.load(x_step + 2 * NUM_WORDS, mask=mask_x, other=0.0)
        x3 = tl.load(x_step + 3 * NUM_WORDS, mask=mask_x, other=0.0)
        if UPCAST:
            x0 = x0.to(tl.float32)
            x1 = x1.to(tl.float32)
            x2 = x2.to(tl.float32)
            x3 = x3.to(tl.float32)
        q0, q1, q2, q3 = biased_nibbles(words, dtype, UPCAST)
        zero = biased_zero(zero_ptr + group_row, mask_n, dtype, UPCAST)
        product = tl.dot(q0 - zero, x0, input_precision="tf32x3")
        product = tl.dot(q1 - zero, x1, product, input_precision="tf32x3")
        if GROUPS == 2:
            acc += product * scale.to(tl.float32)[:, None]
            zero = biased_zero(zero_ptr + group_row + num_n, mask_n, dtype, UPCAST)
            scale = tl.load(scale_ptr + group_row + num_n, mask=mask_n, other=0.0)
            product = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        product = tl.dot(q2 - zero, x2, product, input_precision="tf32x3")
        product = tl.dot(q3 - zero, x3, product, input_precision="tf32x3")
        acc += product * scale.to(tl.float32)[:, None]
        scale = next_scale
    is_last = split == 0
    if num_splits > 1:
        tile = tile_n * tl.num_programs(0) + tile_m
        acc, is_last = sum_splits(
            acc, partial_ptr, counter_ptr, tile, split, num_splits, BLOCK_N, BLOCK_M
        )
    tl.store(
        out_ptr + (offs_m.to(tl.int64) * stride_om)[None, :] + offs_n[:, None],
        acc.to(out_ptr.dtype.element_ty),
        mask=mask_n[:, None] & mask_x & is_last,
    )


def int4_matmul(
    x: torch.Tensor, weight: Int4Weight, out: torch.Tensor, *, num_splits: int | None = None
) -> None:
    """Fill `out` ``[M, N]``; x in the order of the weight's rows, arguments already checked."""
    num_rows = x.shape[0]
    num_steps, num_n, num_words = weight.packed.shape
    if out.numel() == 0:
        return
    tile = nibble_weight_tile(num_rows, x.element_size(), weight.group_size, x.device)
    tile = tuned_tile("int4_matmul", num_rows, x.element_size(), x.device, tile)
    grid_m, grid_n = triton.cdiv(num_rows, tile.block_m), triton.cdiv(num_n, tile.block_n)
    tile_elements = tile.block_m * tile.block_n
    if num_splits is None:
        num_splits = choose_num_splits(grid_m * grid_n, num_steps, tile_elements, x.device)
    partial, counters = split_buffers(x.device, grid_m * grid_n, num_splits, tile_elements)
    with on_device_of(x):
        int4_matmul_kernel[(grid_m, grid_n, num_splits)](
            x,
            weight.packed,
            weight.scales,
            weight.zeros,
            out,
            partial,
            counters,
            num_rows,
            num_n,
            num_steps,
            num_splits,
            x.stride(0),
            out.stride(0),
            UPCAST=IS_INTERPRETED,
            GROUPS=4 * num_words // weight.group_size,
            NUM_WORDS=num_words,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
