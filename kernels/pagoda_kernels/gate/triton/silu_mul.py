"""SwiGLU gate of a joined gate and up projection. Reference: `reference.silu_mul`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of


@triton.jit
def gated(row, offs_i, width):
    """``round(gate * sigmoid(gate)) * up``, rounded again, of elements of one row; 0 beyond it."""
    mask = offs_i < width
    stored = tl.load(row + offs_i, mask=mask, other=0.0)
    up = tl.load(row + width + offs_i, mask=mask, other=0.0).to(tl.float32)
    gate = stored.to(tl.float32)
    return ((gate * tl.sigmoid(gate)).to(stored.dtype).to(tl.float32) * up).to(stored.dtype)


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, width, stride_xt, BLOCK_I: tl.constexpr):
    """``out = round(gate * sigmoid(gate)) * up``; one program per token and tile [BLOCK_I]."""
    token = tl.program_id(0).to(tl.int64)
    offs_i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    # [BLOCK_I]
    out = gated(x_ptr + token * stride_xt, offs_i, width)
    tl.store(out_ptr + token * width + offs_i, out, mask=offs_i < width)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Launch over tokens and tiles of the width; arguments as `pagoda_kernels.gate.silu_mul`."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    block_i = min(1024, next_power_of_2(width))
    with on_device_of(gate_up):
        silu_mul_kernel[(num_tokens, triton.cdiv(width, block_i))](
            gate_up, out, width, gate_up.stride(0), BLOCK_I=block_i
        )
    return out
