"""Quantised matmuls on the CPU.

torch has int8 and int4 kernels that win for single rows, where reading the weight is all there is.
Beyond, the weight is widened once, on first use, and kept beside the packed one: twice (int8, fp8)
or four times (int4) its memory, for a matmul an order faster than widening every time.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from pagoda_kernels.matmul.weights import (
    FP8,
    FP8_MAX,
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantWeight,
    cached,
)

PACKED_MAX_ROWS = 4
"""Rows up to which torch's weight-only kernels beat a matmul with the widened weight."""

INT8_PACK_DEPTH = 16
"""Columns that torch's int8 kernel reads at a time, beyond the end of the tensors if need be."""

HAS_INT8_PACK = hasattr(torch.ops.aten, "_weight_int8pack_mm")
HAS_INT4_PACK = hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")


def int8_matmul(x: torch.Tensor, weight: Int8Weight, out: torch.Tensor) -> None:
    """Fill `out`; arguments as `quant_matmul`, already checked."""
    is_packed = HAS_INT8_PACK and len(x) <= PACKED_MAX_ROWS and x.dtype == torch.bfloat16
    if is_packed and x.shape[1] % INT8_PACK_DEPTH == 0:
        scales = weight.scales.to(x.dtype)
        out.copy_(torch.ops.aten._weight_int8pack_mm(x.contiguous(), weight.values, scales))
        return
    out.copy_(_wide_matmul(x, weight, weight.dequantised))


def int4_matmul(x: torch.Tensor, weight: Int4Weight, out: torch.Tensor) -> None:
    """Fill `out`; columns of x in the order of the weight's rows."""
    num_n = weight.shape[0]
    if HAS_INT4_PACK and len(x) == 1 and x.dtype == torch.bfloat16 and num_n % 16 == 0:
        packed = cached(weight.cache, "torch", lambda: _torch_packed(weight))
        scales = cached(weight.cache, "torch_scales", lambda: _torch_scales(weight, x.dtype))
        out.copy_(
            torch.ops.aten._weight_int4pack_mm_for_cpu(
                x.contiguous(), packed, weight.group_size, scales
            )
        )
        return
    ordered = Int4Weight(weight.packed, weight.scales, weight.zeros)
    out.copy_(_wide_matmul(x, weight, ordered.dequantised))


def fp8_matmul(
    x: torch.Tensor, x_scale: torch.Tensor, weight: Fp8Weight, out: torch.Tensor
) -> None:
    """Fill `out`; e4m3 is exact in bf16 and scales outside the sum are applied after it."""
    if weight.is_block_scaled:
        wide = x.float() * x_scale.repeat_interleave(128, 1)[:, : x.shape[1]]
        out.copy_(_wide_matmul(wide.to(out.dtype), weight, weight.dequantised))
        return
    product = _wide_matmul(x.to(out.dtype), weight, weight.values.float)
    out.copy_(product.float() * x_scale[:, None] * weight.scales)


def quantise_fp8(
    x: torch.Tensor, group_size: int | None, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `pagoda_kernels.quantise_fp8`, arguments already checked."""
    wide = x.float()
    if scale is not None:
        return (wide * (1.0 / scale)).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale
    if group_size is None:
        scales = (wide.abs().amax(1) / FP8_MAX).clamp_min(1e-12)
        return (wide * (1.0 / scales)[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scales
    num_k = x.shape[1]
    padded = F.pad(wide, (0, -num_k % group_size)).reshape(
        len(x), -(-num_k // group_size), group_size
    )
    scales = (padded.abs().amax(2) / FP8_MAX).clamp_min(1e-12)
    values = (padded * (1.0 / scales)[..., None]).clamp(-FP8_MAX, FP8_MAX)
    return values.flatten(1)[:, :num_k].to(FP8).contiguous(), scales


def _wide_matmul(
    x: torch.Tensor, weight: QuantWeight, widen: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """``x @ wide.T`` in bf16 for bf16, else in fp32: fp16 products are slow on CPUs."""
    dtype = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
    wide = cached(weight.cache, dtype, lambda: widen().to(dtype))
    return F.linear(x.to(dtype), wide)


def _torch_packed(weight: Int4Weight) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        weight.nibbles().int(), 1
    )
    return packed


def _torch_scales(weight: Int4Weight, dtype: torch.dtype) -> torch.Tensor:
    """``[K / group_size, N, 2]``: torch computes ``(q - 8) * scale + offset``."""
    scales = weight.scales.float()
    return torch.stack([scales, (8.0 - weight.zeros.float()) * scales], -1).to(dtype)
