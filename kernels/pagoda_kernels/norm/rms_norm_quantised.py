"""RMS norm whose output feeds an fp8 matmul: e4m3 with one scale per token.

The same numbers as `quantise_fp8` of `rms_norm`, without the trip of the normed tensor to memory.
"""

import torch

from pagoda_kernels.checks import check_float, check_last_dim_dense, check_same, check_shape
from pagoda_kernels.matmul.cpu import quantise_fp8
from pagoda_kernels.norm.rms_norm import add_rms_norm, rms_norm


def rms_norm_quantised(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``y = rms_norm(x)``, ``scale = max |y| / 448`` of a row, ``round(y / scale)`` in e4m3.

    Args:
        x: ``[T, N]`` fp32, fp16 or bf16; rows dense.
        weight: ``[N]``, dtype and device of x.
        eps: added to the mean square.

    Returns:
        (quantised, scales): contiguous ``[T, N]`` float8_e4m3fn and fp32 ``[T]``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(x, weight)
    if x.is_cuda:
        from pagoda_kernels.norm.triton import rms_norm_quantised as triton_op

        return triton_op.rms_norm_quantised(x, weight, eps)
    return quantise_fp8(rms_norm(x, weight, eps), None, None)


def add_rms_norm_quantised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``residual + x``, rounded to the dtype of x, and its `rms_norm_quantised`.

    Args:
        x: ``[T, N]`` fp32, fp16 or bf16; rows dense.
        residual: as `x`.
        weight: ``[N]``, dtype and device of x.
        eps: added to the mean square.

    Returns:
        (quantised, scales, new_residual): as `rms_norm_quantised`, and contiguous ``[T, N]``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(x, weight)
    check_shape("residual", residual, x.shape)
    check_same("residual", residual, "x", x)
    check_last_dim_dense("residual", residual)
    if x.is_cuda:
        from pagoda_kernels.norm.triton import rms_norm_quantised as triton_op

        return triton_op.add_rms_norm_quantised(x, residual, weight, eps)
    normed, new_residual = add_rms_norm(x, residual, weight, eps)
    return *quantise_fp8(normed, None, None), new_residual


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    check_shape("x", x, (None, None))
    check_float("x", x)
    check_last_dim_dense("x", x)
    check_shape("weight", weight, (x.shape[-1],))
    check_same("weight", weight, "x", x)
