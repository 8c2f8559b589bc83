"""The SwiGLU gate whose output feeds an fp8 matmul: e4m3 with one scale per token."""

import torch

from pagoda_kernels.gate.silu_mul import check_gate_up, silu_mul
from pagoda_kernels.matmul.cpu import quantise_fp8


def silu_mul_quantised(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``y = silu_mul(gate_up)``, ``scale = max |y| / 448`` of a row, ``round(y / scale)`` in e4m3.

    Args:
        gate_up: ``[T, 2 * I]`` fp32, fp16 or bf16; rows dense.

    Returns:
        (quantised, scales): contiguous ``[T, I]`` float8_e4m3fn and fp32 ``[T]``.

    Raises:
        ValueError: not two-dimensional, not a float, or an odd width.
    """
    check_gate_up(gate_up)
    if gate_up.is_cuda:
        from pagoda_kernels.gate.triton.silu_mul_quantised import silu_mul_quantised as triton_op

        return triton_op(gate_up)
    return quantise_fp8(silu_mul(gate_up), None, None)
