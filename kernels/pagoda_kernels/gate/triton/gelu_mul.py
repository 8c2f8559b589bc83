"""GELU gate of a joined gate and up projection. Reference: `reference.gelu_mul`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

SQRT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
TWICE_SQRT_2_OVER_PI: tl.constexpr = tl.constexpr(1.5957691216057308)


@triton.jit
def gelu_mul_kernel(x_ptr, out_ptr, width, stride_xt, IS_TANH: tl.constexpr, BLOCK_I: tl.constexpr):
    """``out = round(gelu(gate)) * up``; one program per token and tile [BLOCK_I].

    ``gelu(g) = g (1 + erf(g / sqrt 2)) / 2``, or with IS_TANH ``g (1 + tanh(z)) / 2``, that is
    ``g sigmoid(2 z)``, where ``z = sqrt(2 / pi) (g + 0.044715 g^3)``. Hendrycks and Gimpel,
    https://arxiv.org/abs/1606.08415.
    """
    token = tl.program_id(0).to(tl.int64)
    offs_i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    mask = offs_i < width
    row = x_ptr + token * stride_xt
    # [BLOCK_I]
    stored = tl.load(row + offs_i, mask=mask, other=0.0)
    up = tl.load(row + width + offs_i, mask=mask, other=0.0).to(tl.float32)
    gate = stored.to(tl.float32)
    if IS_TANH:
        inner = gate * TWICE_SQRT_2_OVER_PI * (1.0 + 0.044715 * gate * gate)
        part = tl.sigmoid(tl.maximum(inner, -80.0))  # exp must not overflow
    else:
        part = 0.5 * (1.0 + tl.erf(gate * SQRT_HALF))
    gated = (gate * part).to(stored.dtype).to(tl.float32)
    tl.store(out_ptr + token * width + offs_i, (gated * up).to(stored.dtype), mask=mask)


def gelu_mul(gate_up: torch.Tensor, approximate: str) -> torch.Tensor:
    """Launch over tokens and tiles of the width; arguments as `pagoda_kernels.gate.gelu_mul`."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    block_i = min(1024, next_power_of_2(width))
    with on_device_of(gate_up):
        gelu_mul_kernel[(num_tokens, triton.cdiv(width, block_i))](
            gate_up,
            out,
            width,
            gate_up.stride(0),
            IS_TANH=approximate == "tanh",
            BLOCK_I=block_i,
        )
    return out
