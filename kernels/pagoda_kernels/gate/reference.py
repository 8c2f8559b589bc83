"""Readable twins of the gates: the activation in fp32, rounded before the product."""

import math

import torch

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


def silu_mul_quantised(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate, then quantise each row."""
    return quantise_fp8(silu_mul(gate_up))
