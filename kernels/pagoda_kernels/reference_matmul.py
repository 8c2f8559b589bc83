"""Readable twins of the quantised matmuls, the mixture of experts, LoRA and GELU.

Loops and fp32 throughout, no speed intended; results are rounded to the dtype of the input last,
except where an operator's docstring says it rounds between.
"""

import math

import torch

from pagoda_kernels.quant_weights import FP8, FP8_MAX, Fp8Weight, QuantWeight, spread_blocks


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


def route_topk(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    renormalise: bool = False,
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token at a time; equal scores go to the lower expert."""
    all_weights, all_experts = [], []
    for row in logits.float():
        scores = row.softmax(0) if scoring == "softmax" else row.sigmoid()
        choice = scores if bias is None else scores + bias.float()
        groups = choice.reshape(num_groups, -1)
        best = groups.amax(1) if bias is None else groups.topk(2, 1).values.sum(1)
        kept = best.sort(descending=True, stable=True).indices[:top_groups]
        allowed = torch.zeros_like(groups, dtype=torch.bool)
        allowed[kept] = True
        choice = choice.masked_fill(~allowed.flatten(), float("-inf"))
        experts = choice.sort(descending=True, stable=True).indices[:top_k]
        weights = scores[experts]
        all_weights.append(scale * (weights / weights.sum() if renormalise else weights))
        all_experts.append(experts)
    return torch.stack(all_weights), torch.stack(all_experts).int()


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    *,
    gate_up_scale: torch.Tensor | None = None,
    down_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token and one expert at a time: ``sum_j weight_j down_e (silu(gate_e x) * up_e x)``."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for token in range(len(x)):
        for weight, expert in zip(weights[token].tolist(), experts[token].tolist(), strict=True):
            if expert < 0:
                continue
            wide_in, wide_out = gate_up[expert].float(), down[expert].float()
            if gate_up_scale is not None and down_scale is not None:
                wide_in = wide_in * spread_blocks(gate_up_scale[expert], *wide_in.shape)
                wide_out = wide_out * spread_blocks(down_scale[expert], *wide_out.shape)
            gate, up = (wide_in @ x[token].float()).chunk(2)
            out[token] += weight * (wide_out @ (gate * gate.sigmoid() * up))
    return out.to(x.dtype)


def add_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    adapters: torch.Tensor,
    ranks: torch.Tensor,
    scales: torch.Tensor,
) -> torch.Tensor:
    """One token at a time; the sum is returned, `out` is left alone."""
    total = out.float().clone()
    for token, adapter in enumerate(adapters.tolist()):
        if adapter >= 0:
            rank = int(ranks[adapter])
            shrunk = a[adapter, :rank].float() @ x[token].float()
            total[token] += scales[adapter] * (b[adapter, :, :rank].float() @ shrunk)
    return total.to(out.dtype)


def gelu_mul(gate_up: torch.Tensor, approximate: str = "tanh") -> torch.Tensor:
    """As GemmaMLP: the gate is rounded before the product."""
    gate, up = gate_up.chunk(2, -1)
    gate = gate.float()
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        activated = 0.5 * gate * (1 + torch.tanh(inner))
    else:
        activated = 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2)))
    return activated.to(up.dtype) * up
