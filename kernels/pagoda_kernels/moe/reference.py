"""Readable twins of routing and of the experts: one token at a time, in fp32."""

import torch

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu
from pagoda_kernels.gate.reference import clamped_swiglu, gelu_mul
from pagoda_kernels.matmul.weights import spread_blocks
from pagoda_kernels.moe.expert_gate import ExpertGate


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
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    gate: ExpertGate | None = None,
) -> torch.Tensor:
    """One token and one expert at a time: ``sum_j weight_j down_e (silu(gate_e x) * up_e x)``.

    With biases, and the rule of `gate`, where they are there.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for token in range(len(x)):
        for weight, expert in zip(weights[token].tolist(), experts[token].tolist(), strict=True):
            if expert < 0:
                continue
            wide_in, wide_out = gate_up[expert].float(), down[expert].float()
            if gate_up_scale is not None and down_scale is not None:
                wide_in = wide_in * spread_blocks(gate_up_scale[expert], *wide_in.shape)
                wide_out = wide_out * spread_blocks(down_scale[expert], *wide_out.shape)
            both = wide_in @ x[token].float()
            if gate_up_bias is not None:
                both = both + gate_up_bias[expert].float()
            if isinstance(gate, ClampedSwiglu):
                gated = clamped_swiglu(both, gate)
            elif gate == "gelu_tanh":
                gated = gelu_mul(both[None], "tanh")[0]
            else:
                gated = both.chunk(2)[0].sigmoid() * both.chunk(2)[0] * both.chunk(2)[1]
            part = wide_out @ gated
            out[token] += weight * (part if down_bias is None else part + down_bias[expert].float())
    return out.to(x.dtype)
