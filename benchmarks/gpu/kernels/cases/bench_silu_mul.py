"""SwiGLU gate, beside the same formula under `torch.compile`."""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels import silu_mul
from pagoda_kernels.gate import reference

TOLERANCE = 4e-3


def cases(device: torch.device) -> list[Case]:
    return [gate_case(device, 64, 14336), gate_case(device, 8192, 14336, goal=0.85)]


def gate_case(device: torch.device, num_tokens: int, width: int, goal: float | None = None) -> Case:
    """Two reads, one write."""
    return Case(
        op="silu_mul",
        name=f"T{num_tokens} I{width} bf16",
        check=lambda seed: _error(_inputs(device, num_tokens, width, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(silu_mul, _inputs(device, num_tokens, width)),
        num_bytes=2 * 3 * num_tokens * width,
        goal=goal,
        baselines={
            "compile": lambda: _launch(
                torch.compile(reference.silu_mul), _inputs(device, num_tokens, width)
            )
        },
    )


def _inputs(
    device: torch.device, num_tokens: int, width: int, seed: int | None = None
) -> torch.Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    return torch.randn(num_tokens, 2 * width, dtype=torch.bfloat16, device=device)


def _launch(operator, gate_up: torch.Tensor) -> Launch:  # type: ignore[no-untyped-def]
    return lambda: operator(gate_up)


def _error(gate_up: torch.Tensor) -> float:
    gate, up = gate_up.double().chunk(2, -1)
    return relative_error(silu_mul(gate_up), gate * torch.sigmoid(gate) * up)
