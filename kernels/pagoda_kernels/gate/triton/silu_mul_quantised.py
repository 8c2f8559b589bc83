"""SwiGLU gate to fp8 with a scale per row. Reference: `reference.silu_mul_quantised`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.gate.triton.silu_mul import gated
from pagoda_kernels.matmul.triton.quantise_fp8 import empty_codes, row_scale
from pagoda_kernels.norm.triton.rms_norm import num_warps_of
from pagoda_kernels.triton.launch import next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import quantised

MAX_BLOCK_I = 8192
"""Elements of a row a program holds at a time; a longer row is read again, from the L2 cache."""


@triton.jit
def silu_mul_quantised_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    width,
    stride_xt,
    NUM_TILES: tl.constexpr,
    E4M3: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """``y = silu_mul(x)``, ``scale = max |y| / 448``, ``out = round(y / scale)``.

    Tile [BLOCK_I], one program per token, which walks its row twice unless it fits one tile.
    """
    token = tl.program_id(0).to(tl.int64)
    row = x_ptr + token * stride_xt
    out_row = out_ptr + token * width
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    offs_i = tl.arange(0, BLOCK_I)
    if NUM_TILES == 1:
        # [BLOCK_I]
        y = gated(row, offs_i, width).to(tl.float32)
        scale = row_scale(tl.max(tl.abs(y), axis=0))
        tl.store(out_row + offs_i, quantised(y, 1.0 / scale, dtype, E4M3), mask=offs_i < width)
    else:
        largest = tl.zeros([BLOCK_I], dtype=tl.float32)
        for tile in range(0, NUM_TILES):
            y = gated(row, tile * BLOCK_I + offs_i, width).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(y))
        scale = row_scale(tl.max(largest, axis=0))
        for tile in range(0, NUM_TILES):
            at = tile * BLOCK_I + offs_i
            y = gated(row, at, width).to(tl.float32)
            tl.store(out_row + at, quantised(y, 1.0 / scale, dtype, E4M3), mask=at < width)
    tl.store(scale_ptr + token, scale)


def silu_mul_quantised(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch one program per token; arguments as `pagoda_kernels.gate.silu_mul_quantised`."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out, codes, kind = empty_codes(gate_up, width)
    scales = torch.empty(num_tokens, dtype=torch.float32, device=gate_up.device)
    if out.numel() == 0:
        return out, scales
    block_i = min(MAX_BLOCK_I, next_power_of_2(width))
    with on_device_of(gate_up):
        silu_mul_quantised_kernel[(num_tokens,)](
            gate_up,
            codes,
            scales,
            width,
            gate_up.stride(0),
            NUM_TILES=triton.cdiv(width, block_i),
            E4M3=kind,
            BLOCK_I=block_i,
            num_warps=num_warps_of(block_i),
        )
    return out, scales
