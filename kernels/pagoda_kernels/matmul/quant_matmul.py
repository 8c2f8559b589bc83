"""Linear layers with quantised weights: fp8 W8A8, int8 and int4 weight-only.

Knows the layouts of `weights`. Knows nothing of checkpoints (`pack`).
"""

import torch

from pagoda_kernels.checks import check_float, check_fp32, check_last_dim_dense, check_shape
from pagoda_kernels.matmul import cpu
from pagoda_kernels.matmul.weights import FP8, FP8_BLOCK, Fp8Weight, Int4Weight, QuantWeight


def quant_matmul(
    x: torch.Tensor,
    weight: QuantWeight,
    *,
    x_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x @ dequantised(weight).T``, accumulated in fp32.

    With an `Fp8Weight` x is quantised first: with `x_scale` if given, else per token, or per 128
    columns if the weight is block scaled (see `quantise_fp8`).

    Args:
        x: ``[M, K]`` fp32, fp16 or bf16; rows dense.
        weight: of shape (N, K), on the device of x.
        x_scale: ``[1]`` fp32, static scale of x; fp8 per tensor or per channel only.
        out: ``[M, N]``, dtype of x, rows dense. Allocated if None.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    num_n, num_k = weight.shape
    check_shape("x", x, (None, num_k))
    check_float("x", x)
    check_last_dim_dense("x", x)
    if isinstance(weight, Fp8Weight):
        group_size = FP8_BLOCK if weight.is_block_scaled else None
        quantised, scales = quantise_fp8(x, group_size=group_size, scale=x_scale)
        return fp8_matmul(quantised, scales, weight, dtype=x.dtype, out=out)
    if x_scale is not None:
        raise ValueError("x_scale: expected None for a weight-only format, got a tensor")
    out = _checked_out(out, x, x.dtype, num_n, weight.scales)
    if isinstance(weight, Int4Weight):
        if weight.order is not None:
            x = x.index_select(1, weight.order)
        if x.is_cuda:
            from pagoda_kernels.matmul.triton.int4_matmul import int4_matmul

            int4_matmul(x, weight, out)
        else:
            cpu.int4_matmul(x, weight, out)
    elif x.is_cuda:
        from pagoda_kernels.matmul.triton.int8_matmul import int8_matmul

        int8_matmul(x, weight, out)
    else:
        cpu.int8_matmul(x, weight, out)
    return out


def fp8_matmul(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: Fp8Weight,
    *,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``(x * x_scale) @ dequantised(weight).T``, accumulated in fp32.

    Args:
        x: ``[M, K]`` float8_e4m3fn; rows dense.
        x_scale: fp32 ``[1]`` or ``[M]``; ``[M, K / 128]`` (rounded up) if the weight is block
            scaled.
        weight: of shape (N, K), on the device of x.
        dtype: of the result.
        out: ``[M, N]`` of `dtype`, rows dense. Allocated if None.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    num_n, num_k = weight.shape
    check_shape("x", x, (None, num_k))
    check_last_dim_dense("x", x)
    for name, tensor in (("x", x), ("weight", weight.values)):
        if tensor.dtype != FP8:
            raise ValueError(f"{name}: expected {FP8}, got {tensor.dtype}")
    if weight.is_block_scaled:
        check_shape("x_scale", x_scale, (len(x), -(-num_k // FP8_BLOCK)))
        blocks = -(-num_n // FP8_BLOCK), -(-num_k // FP8_BLOCK)
        check_shape("weight.scales", weight.scales, blocks)
    elif tuple(x_scale.shape) not in ((1,), (len(x),)):
        raise ValueError(f"x_scale: expected shape [1] or [{len(x)}], got {list(x_scale.shape)}")
    elif tuple(weight.scales.shape) not in ((1,), (num_n,)):
        raise ValueError(
            f"weight.scales: expected shape [1] or [{num_n}], got {list(weight.scales.shape)}"
        )
    for name, tensor in (("x_scale", x_scale), ("weight.scales", weight.scales)):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"{name}: expected contiguous fp32, got {tensor.dtype}")
    out = _checked_out(out, x, dtype, num_n, weight.scales)
    if x.is_cuda:
        from pagoda_kernels.matmul.triton.fp8_matmul import fp8_matmul as fp8_matmul_triton

        fp8_matmul_triton(x, x_scale, weight, out)
    else:
        cpu.fp8_matmul(x, x_scale, weight, out)
    return out


def quantise_fp8(
    x: torch.Tensor, *, group_size: int | None = None, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(round(clamp(x / scale)), scale)`` in e4m3, by default ``scale = max |x| / 448``.

    Args:
        x: ``[M, K]`` fp32, fp16 or bf16; rows dense.
        group_size: columns of a row that share a scale; None for the whole row.
        scale: ``[1]`` fp32 to use for all of x; then `group_size` must be None.

    Returns:
        Contiguous ``[M, K]`` float8_e4m3fn, and fp32 ``[M]``, ``[M, K / group_size]`` (rounded up)
        or `scale` itself.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    check_shape("x", x, (None, None))
    check_float("x", x)
    check_last_dim_dense("x", x)
    if scale is not None:
        check_shape("scale", scale, (1,))
        check_fp32("scale", scale, x.device)
        if group_size is not None:
            raise ValueError(f"group_size: expected None with a scale, got {group_size}")
    if x.is_cuda:
        from pagoda_kernels.matmul.triton.quantise_fp8 import quantise_fp8 as quantise_fp8_triton

        return quantise_fp8_triton(x, group_size, scale)
    return cpu.quantise_fp8(x, group_size, scale)


def _checked_out(
    out: torch.Tensor | None, x: torch.Tensor, dtype: torch.dtype, num_n: int, scales: torch.Tensor
) -> torch.Tensor:
    """`out` after its checks, or a new one; the weight must be on the device of x."""
    if scales.device != x.device:
        raise ValueError(f"weight: expected on {x.device} as x, got {scales.device}")
    if out is None:
        return torch.empty((len(x), num_n), dtype=dtype, device=x.device)
    check_shape("out", out, (len(x), num_n))
    check_last_dim_dense("out", out)
    if out.dtype != dtype or out.device != x.device:
        raise ValueError(f"out: expected {dtype} on {x.device}, got {out.dtype} on {out.device}")
    return out
