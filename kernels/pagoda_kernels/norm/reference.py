"""Readable twins of the norms, in fp32 where their docstrings do not say they round."""

import torch

from pagoda_kernels.matmul.reference import quantise_fp8


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool = False
) -> torch.Tensor:
    """As LlamaRMSNorm, rounded before the weight is applied, or as GemmaRMSNorm, after it."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (normed * (1 + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    unit_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum in the dtype of x, then `rms_norm`."""
    new_residual = residual + x
    return rms_norm(new_residual, weight, eps, unit_offset), new_residual


def rms_norm_quantised(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm, then quantise each row."""
    return quantise_fp8(rms_norm(x, weight, eps))


def add_rms_norm_quantised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add, norm, then quantise each row."""
    normed, new_residual = add_rms_norm(x, residual, weight, eps)
    return *quantise_fp8(normed), new_residual
