"""Readable twins of the gates: the activation in fp32, rounded before the product."""

import math

import torch

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu
from pagoda_kernels.matmul.reference import quantise_fp8


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As LlamaMLP: the gate is rounded before the product."""
    gate, up = gate_up.chunk(2, -1)
    gate = gate.float()
    return (gate / (1 + torch.exp(-gate))).to(up.dtype) * up


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


def clamped_swiglu(gate_up: torch.Tensor, rule: ClampedSwiglu) -> torch.Tensor:
    """As GptOssExperts, in fp32."""
    gate, up = gate_up.float().chunk(2, -1)
    gate = torch.minimum(gate, torch.tensor(rule.limit))
    up = torch.minimum(torch.maximum(up, torch.tensor(-rule.limit)), torch.tensor(rule.limit))
    return (gate / (1 + torch.exp(-rule.alpha * gate)) * (up + 1)).to(gate_up.dtype)


def silu_mul_quantised(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate, then quantise each row."""
    return quantise_fp8(silu_mul(gate_up))
