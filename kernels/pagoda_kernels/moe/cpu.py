"""Mixture of experts on the CPU: tokens sorted by expert, two matmuls per expert in use."""

import torch
import torch.nn.functional as F

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu, clamped_swiglu
from pagoda_kernels.matmul.weights import spread_blocks
from pagoda_kernels.moe.expert_gate import ExpertGate


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up_scale: torch.Tensor | None,
    down_scale: torch.Tensor | None,
    *,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    gate: ExpertGate | None = None,
) -> torch.Tensor:
    """As `pagoda_kernels.fused_moe`, arguments already checked."""
    num_experts, top_k = len(gate_up), experts.shape[1]
    flat = experts.flatten().long()
    order = flat.argsort(stable=True)
    order = order[int((flat < 0).sum()) :]
    counts = torch.bincount(flat[order], minlength=num_experts).tolist()
    tokens = order // top_k
    rows = x.index_select(0, tokens)
    parts = torch.empty(len(order), x.shape[1], dtype=x.dtype)
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        stop = start + count
        wide_in = _widened(gate_up, gate_up_scale, expert, x.dtype)
        wide_out = _widened(down, down_scale, expert, x.dtype)
        bias_in = None if gate_up_bias is None else gate_up_bias[expert]
        bias_out = None if down_bias is None else down_bias[expert]
        both = F.linear(rows[start:stop], wide_in, bias_in)
        parts[start:stop] = F.linear(_gated(both, gate), wide_out, bias_out)
        start = stop
    out = torch.zeros(x.shape, dtype=torch.float32)
    out.index_add_(0, tokens, parts.float() * weights.flatten()[order][:, None])
    return out.to(x.dtype)


def _gated(gate_up: torch.Tensor, rule: ExpertGate | None) -> torch.Tensor:
    if isinstance(rule, ClampedSwiglu):
        return clamped_swiglu(gate_up, rule)
    gate, up = gate_up.chunk(2, -1)
    if rule == "gelu_tanh":
        return F.gelu(gate, approximate="tanh").mul_(up)
    return F.silu(gate).mul_(up)


def _widened(
    weight: torch.Tensor, scale: torch.Tensor | None, expert: int, dtype: torch.dtype
) -> torch.Tensor:
    chosen = weight[expert]
    if scale is None:
        return chosen
    return (chosen.float() * spread_blocks(scale[expert], *chosen.shape)).to(dtype)
