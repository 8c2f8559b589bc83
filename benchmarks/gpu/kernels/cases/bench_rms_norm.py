"""RMS norm alone and with the residual, beside the same formula under `torch.compile`."""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels import add_rms_norm, rms_norm
from pagoda_kernels.norm import reference

EPS = 1e-5
TOLERANCE = 4e-3


def cases(device: torch.device) -> list[Case]:
    return [
        add_case(device, 64, 4096),
        norm_case(device, 16384, 4096, goal=0.85),
        add_case(device, 16384, 4096, goal=0.85),
        add_case(device, 8192, 8192, goal=0.85),
    ]


def norm_case(device: torch.device, num_tokens: int, width: int, goal: float | None = None) -> Case:
    """One read, one write."""
    return Case(
        op="rms_norm",
        name=f"norm T{num_tokens} N{width} bf16",
        check=lambda seed: _norm_error(*_inputs(device, num_tokens, width, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(rms_norm, *_inputs(device, num_tokens, width)[::2]),
        num_bytes=2 * (2 * num_tokens * width + width),
        goal=goal,
        baselines={
            "compile": lambda: _launch(
                torch.compile(reference.rms_norm), *_inputs(device, num_tokens, width)[::2]
            )
        },
    )


def add_case(device: torch.device, num_tokens: int, width: int, goal: float | None = None) -> Case:
    """Two reads, two writes."""
    return Case(
        op="rms_norm",
        name=f"add T{num_tokens} N{width} bf16",
        check=lambda seed: _add_error(*_inputs(device, num_tokens, width, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(add_rms_norm, *_inputs(device, num_tokens, width)),
        num_bytes=2 * (4 * num_tokens * width + width),
        goal=goal,
        baselines={
            "compile": lambda: _launch(
                torch.compile(reference.add_rms_norm), *_inputs(device, num_tokens, width)
            )
        },
    )


def _inputs(
    device: torch.device, num_tokens: int, width: int, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, residual, weight)."""
    if seed is not None:
        torch.manual_seed(seed)
    shape = (2, num_tokens, width)
    x, residual = torch.randn(shape, dtype=torch.bfloat16, device=device)
    return x, residual, torch.randn(width, dtype=torch.bfloat16, device=device)


def _launch(operator, *tensors: torch.Tensor) -> Launch:  # type: ignore[no-untyped-def]
    return lambda: operator(*tensors, EPS)


def _norm_error(x: torch.Tensor, _: torch.Tensor, weight: torch.Tensor) -> float:
    return relative_error(rms_norm(x, weight, EPS), _wide_norm(x.double(), weight))


def _add_error(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> float:
    normed, total = add_rms_norm(x, residual, weight, EPS)
    want = x.double() + residual.double()
    return max(relative_error(total, want), relative_error(normed, _wide_norm(want, weight)))


def _wide_norm(wide: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()
