"""Readable twins of the quantised matmuls and of what AutoAWQ and GPTQ pack.

Loops and fp32 throughout, no speed intended; results are rounded to the dtype of the input last.
"""

import torch

from pagoda_kernels.matmul.weights import FP8, FP8_MAX, Fp8Weight, QuantWeight


def quant_matmul(x: torch.Tensor, weight: QuantWeight) -> torch.Tensor:
    """Weight-only: widen the weight, multiply."""
    return (x.float() @ weight.dequantised().T).to(x.dtype)


def quantise_fp8(
    x: torch.Tensor, group_size: int | None = None, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One group of columns at a time."""
    if scale is not None:
        return (x.float() * (1.0 / scale)).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale
    width = group_size or x.shape[1]
    groups = [x[:, start : start + width].float() for start in range(0, x.shape[1], width)]
    scales = [(group.abs().amax(1) / FP8_MAX).clamp_min(1e-12) for group in groups]
    values = [
        (group * (1.0 / scale)[:, None]).clamp(-FP8_MAX, FP8_MAX)
        for group, scale in zip(groups, scales, strict=True)
    ]
    return torch.cat(values, 1).to(FP8), scales[0] if group_size is None else torch.stack(scales, 1)


def fp8_matmul(
    x: torch.Tensor, x_scale: torch.Tensor, weight: Fp8Weight, dtype: torch.dtype
) -> torch.Tensor:
    """Widen both, multiply."""
    scale = x_scale[:, None]
    if weight.is_block_scaled:
        scale = x_scale.repeat_interleave(128, 1)[:, : x.shape[1]]
    return ((x.float() * scale) @ weight.dequantised().T).to(dtype)


def unpack_awq(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, group_size: int
) -> torch.Tensor:
    """``[K, N]`` fp32 of an AWQ layer, nibble by nibble as AutoAWQ's ``reverse_awq_order``."""
    order = (0, 4, 1, 5, 2, 6, 3, 7)

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        rows = [[(int(w) >> (4 * order[i])) & 15 for w in row for i in range(8)] for row in packed]
        return torch.tensor(rows, dtype=torch.float32)

    group = torch.arange(len(qweight)) // group_size
    return (unpack(qweight) - unpack(qzeros)[group]) * scales.float()[group]


def unpack_gptq(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, g_idx: torch.Tensor
) -> torch.Tensor:
    """``[K, N]`` fp32 of a GPTQ (v1) layer, nibble by nibble; stored zeros are one too low."""
    num_k, num_n = 8 * qweight.shape[0], qweight.shape[1]
    weight = torch.empty(num_k, num_n)
    for k in range(num_k):
        group = int(g_idx[k])
        for n in range(num_n):
            nibble = (int(qweight[k // 8, n]) >> (4 * (k % 8))) & 15
            zero = ((int(qzeros[group, n // 8]) >> (4 * (n % 8))) & 15) + 1
            weight[k, n] = (nibble - zero) * float(scales[group, n])
    return weight
