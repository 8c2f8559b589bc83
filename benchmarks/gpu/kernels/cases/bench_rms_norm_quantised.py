"""Norm and gate to fp8 with a scale per token, beside the same in two kernels, and compiled."""

from collections.abc import Callable

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels import add_rms_norm, silu_mul
from pagoda_kernels.gate import reference as gate_reference
from pagoda_kernels.gate.silu_mul_quantised import silu_mul_quantised
from pagoda_kernels.matmul.quant_matmul import quantise_fp8
from pagoda_kernels.norm import reference as norm_reference
from pagoda_kernels.norm.rms_norm_quantised import add_rms_norm_quantised

EPS = 1e-5
TOLERANCE = 0.03
"""e4m3 rounds by at most 2^-4 of a value; uniformly spread that is 2.6 % of the norm."""


def cases(device: torch.device) -> list[Case]:
    return [
        norm_case(device, 64, 4096),
        norm_case(device, 8192, 8192, goal=0.85),
        gate_case(device, 8192, 14336, goal=0.85),
    ]


def norm_case(device: torch.device, num_tokens: int, width: int, goal: float | None = None) -> Case:
    """Two reads and a write of two bytes, a write of one."""
    return Case(
        op="rms_norm_quantised",
        name=f"add norm T{num_tokens} N{width} bf16",
        check=lambda seed: _norm_error(*_norm_inputs(device, num_tokens, width, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(add_rms_norm_quantised, *_norm_inputs(device, num_tokens, width)),
        num_bytes=num_tokens * (7 * width + 4) + 2 * width,
        goal=goal,
        baselines={
            "two kernels": lambda: _launch(_two_norms, *_norm_inputs(device, num_tokens, width)),
            "compile": lambda: _launch(
                torch.compile(norm_reference.add_rms_norm_quantised),
                *_norm_inputs(device, num_tokens, width),
            ),
        },
    )


def gate_case(device: torch.device, num_tokens: int, width: int, goal: float | None = None) -> Case:
    """Two reads of two bytes, a write of one; what is read again comes from a cache."""
    return Case(
        op="rms_norm_quantised",
        name=f"gate T{num_tokens} I{width} bf16",
        check=lambda seed: _gate_error(_gate_inputs(device, num_tokens, width, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(silu_mul_quantised, _gate_inputs(device, num_tokens, width)),
        num_bytes=num_tokens * (5 * width + 4),
        goal=goal,
        baselines={
            "two kernels": lambda: _launch(_two_gates, _gate_inputs(device, num_tokens, width)),
            "compile": lambda: _launch(
                torch.compile(gate_reference.silu_mul_quantised),
                _gate_inputs(device, num_tokens, width),
            ),
        },
    )


def _norm_inputs(
    device: torch.device, num_tokens: int, width: int, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """(x, residual, weight, eps)."""
    if seed is not None:
        torch.manual_seed(seed)
    x, residual = torch.randn((2, num_tokens, width), dtype=torch.bfloat16, device=device)
    return x, residual, torch.randn(width, dtype=torch.bfloat16, device=device), EPS


def _gate_inputs(
    device: torch.device, num_tokens: int, width: int, seed: int | None = None
) -> torch.Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    return torch.randn(num_tokens, 2 * width, dtype=torch.bfloat16, device=device)


def _launch(operator: Callable[..., object], *arguments: object) -> Launch:
    return lambda: operator(*arguments)


def _two_norms(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    normed, total = add_rms_norm(x, residual, weight, eps)
    return *quantise_fp8(normed), total


def _two_gates(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise_fp8(silu_mul(gate_up))


def _norm_error(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> float:
    codes, scales, total = add_rms_norm_quantised(x, residual, weight, eps)
    wide = x.double() + residual.double()
    want = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
    got = codes.float() * scales[:, None]
    return max(relative_error(total, wide), relative_error(got, want))


def _gate_error(gate_up: torch.Tensor) -> float:
    codes, scales = silu_mul_quantised(gate_up)
    gate, up = gate_up.double().chunk(2, -1)
    return relative_error(codes.float() * scales[:, None], gate * torch.sigmoid(gate) * up)
