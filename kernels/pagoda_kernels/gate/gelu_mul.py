"""The gate of a GELU feed-forward layer, on the output of its joined gate and up projection."""

import torch
import torch.nn.functional as F

from pagoda_kernels.gate.silu_mul import check_gate_up

APPROXIMATIONS = ("tanh", "none")


def gelu_mul(gate_up: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """``round(gelu(gate)) * up`` where ``gate, up`` are the halves of the last dim.

    Args:
        gate_up: ``[T, 2 * I]`` fp32, fp16 or bf16; rows dense.
        approximate: "tanh" (Gemma) or "none" for the exact form with erf.

    Returns:
        New contiguous ``[T, I]``.

    Raises:
        ValueError: not two-dimensional, not a float, an odd width, or no such approximation.
    """
    check_gate_up(gate_up)
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"approximate: expected one of {APPROXIMATIONS}, got {approximate!r}")
    if gate_up.is_cuda:
        from pagoda_kernels.gate.triton.gelu_mul import gelu_mul as gelu_mul_triton

        return gelu_mul_triton(gate_up, approximate)
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate=approximate).mul_(up)
