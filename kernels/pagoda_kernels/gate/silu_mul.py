"""The gate of a SwiGLU feed-forward layer, on the output of its joined gate and up projection."""

import torch
import torch.nn.functional as F

from pagoda_kernels.checks import check_float, check_last_dim_dense, check_shape


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``round(silu(gate)) * up`` where ``gate, up`` are the halves of the last dim.

    Args:
        gate_up: ``[T, 2 * I]`` fp32, fp16 or bf16; rows dense.

    Returns:
        New contiguous ``[T, I]``.

    Raises:
        ValueError: not two-dimensional, not a float, or an odd width.
    """
    check_gate_up(gate_up)
    if gate_up.is_cuda:
        from pagoda_kernels.gate.triton.silu_mul import silu_mul as silu_mul_triton

        return silu_mul_triton(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def check_gate_up(gate_up: torch.Tensor) -> None:
    """Raise ValueError unless `gate_up` is ``[T, 2 * I]`` of floats with dense rows."""
    check_shape("gate_up", gate_up, (None, None))
    check_float("gate_up", gate_up)
    check_last_dim_dense("gate_up", gate_up)
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: expected an even width, got {gate_up.shape[1]}")
