"""Root-mean-square norm over the last dim, alone or fused with the residual sum before it.

Rounds where Llama in Hugging Face transformers rounds: the normed value to the dtype of x, then the
product with the weight again. With a unit offset it rounds once, where Gemma does.
"""

import torch

from pagoda_kernels.checks import (
    check_float,
    check_last_dim_dense,
    check_same,
    check_shape,
)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    unit_offset: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``round(x / sqrt(mean(x^2) + eps)) * weight``, mean and quotient in fp32.

    Args:
        x: ``[..., N]`` fp32, fp16 or bf16; any strides with a dense last dim.
        weight: ``[N]``, dtype and device of x.
        eps: added to the mean square.
        unit_offset: the factor is ``1 + weight`` in fp32, and only the product is rounded.
        out: shape and dtype of x, contiguous on CUDA; may be x itself. Allocated if None.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(x, weight)
    if out is not None:
        check_shape("out", out, x.shape)
        check_same("out", out, "x", x)
    if x.is_cuda:
        from pagoda_kernels.norm.triton.rms_norm import rms_norm as rms_norm_triton

        return rms_norm_triton(x, weight, eps, out, unit_offset)
    if unit_offset:
        normed = _offset_norm(x, weight, eps)
        return normed if out is None else out.copy_(normed)
    normed = torch.rms_norm(x, x.shape[-1:], None, eps)
    return normed.mul_(weight) if out is None else torch.mul(normed, weight, out=out)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``residual + x``, rounded to the dtype of x, and its `rms_norm`. Neither input is changed.

    Args:
        x: ``[..., N]`` fp32, fp16 or bf16; any strides with a dense last dim.
        residual: as `x`.
        weight: ``[N]``, dtype and device of x.
        eps: added to the mean square.
        unit_offset: as `rms_norm`'s.

    Returns:
        (normed, new_residual), both contiguous.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(x, weight)
    if residual.shape != x.shape:
        check_shape("residual", residual, x.shape)
    if residual.dtype != x.dtype or residual.get_device() != x.get_device():
        check_same("residual", residual, "x", x)
    check_last_dim_dense("residual", residual)
    if x.is_cuda:
        from pagoda_kernels.norm.triton.rms_norm import add_rms_norm as add_rms_norm_triton

        return add_rms_norm_triton(x, residual, weight, eps, unit_offset)
    new_residual = residual + x
    if unit_offset:
        return _offset_norm(new_residual, weight, eps), new_residual
    # Without a weight torch, too, rounds the quotient to the dtype of x.
    normed = torch.rms_norm(new_residual, x.shape[-1:], None, eps)
    return normed.mul_(weight), new_residual


def _offset_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    normed = torch.rms_norm(x.float(), x.shape[-1:], None, eps)
    return normed.mul_(1 + weight.float()).to(x.dtype)


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    check_float("x", x)
    check_last_dim_dense("x", x)
    check_shape("weight", weight, (x.shape[-1],))
    check_same("weight", weight, "x", x)
