"""GELU gate, beside the same formula under `torch.compile`."""

import torch
import torch.nn.functional as F

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels.gate import reference
from pagoda_kernels.gate.gelu_mul import APPROXIMATIONS, gelu_mul

TOLERANCE = 4e-3


def cases(device: torch.device) -> list[Case]:
    return [gate_case(device, 64, 14336, "tanh")] + [
        gate_case(device, 8192, 14336, approximate, goal=0.85) for approximate in APPROXIMATIONS
    ]


def gate_case(
    device: torch.device, num_tokens: int, width: int, approximate: str, goal: float | None = None
) -> Case:
    """Two reads, one write."""
    return Case(
        op="gelu_mul",
        name=f"T{num_tokens} I{width} {approximate} bf16",
        check=lambda seed: _error(_inputs(device, num_tokens, width, seed), approximate),
        tolerance=TOLERANCE,
        build=lambda: _launch(gelu_mul, _inputs(device, num_tokens, width), approximate),
        num_bytes=2 * 3 * num_tokens * width,
        goal=goal,
        baselines={
            "compile": lambda: _launch(
                torch.compile(reference.gelu_mul), _inputs(device, num_tokens, width), approximate
            )
        },
    )


def _inputs(
    device: torch.device, num_tokens: int, width: int, seed: int | None = None
) -> torch.Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    return torch.randn(num_tokens, 2 * width, dtype=torch.bfloat16, device=device)


def _launch(operator, gate_up: torch.Tensor, approximate: str) -> Launch:  # type: ignore[no-untyped-def]
    return lambda: operator(gate_up, approximate=approximate)


def _error(gate_up: torch.Tensor, approximate: str) -> float:
    gate, up = gate_up.double().chunk(2, -1)
    want = F.gelu(gate, approximate=approximate) * up
    return relative_error(gelu_mul(gate_up, approximate=approximate), want)
