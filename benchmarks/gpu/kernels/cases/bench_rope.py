"""Rotary embedding of q and k sliced out of a joined projection, beside `torch.compile`."""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels import apply_rope
from pagoda_kernels.rope import reference

HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
MAX_POSITION = 32768
TOLERANCE = 4e-3

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def cases(device: torch.device) -> list[Case]:
    return [rope_case(device, 64), rope_case(device, 16384, goal=0.85)]


def rope_case(device: torch.device, num_tokens: int, goal: float | None = None) -> Case:
    """Both read and written once, a row of cosines and sines for each token."""
    elements = num_tokens * (HEADS + NUM_KV_HEADS) * HEAD_DIM
    return Case(
        op="rope",
        name=f"T{num_tokens} H{HEADS} HK{NUM_KV_HEADS} D{HEAD_DIM} bf16",
        check=lambda seed: _error(*_inputs(device, num_tokens, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(apply_rope, _inputs(device, num_tokens)),
        num_bytes=2 * 2 * elements + num_tokens * (4 * HEAD_DIM + 8),
        goal=goal,
        baselines={
            "compile": lambda: _launch(
                torch.compile(reference.apply_rope), _inputs(device, num_tokens)
            )
        },
    )


def _inputs(device: torch.device, num_tokens: int, seed: int | None = None) -> Inputs:
    if seed is not None:
        torch.manual_seed(seed)
    width = (HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    qkv = torch.randn(num_tokens, width, dtype=torch.bfloat16, device=device)
    q, k, _ = qkv.unflatten(1, (-1, HEAD_DIM)).split([HEADS, NUM_KV_HEADS, NUM_KV_HEADS], 1)
    positions = torch.randint(0, MAX_POSITION, (num_tokens,), device=device)
    angles = torch.rand(MAX_POSITION, HEAD_DIM // 2, device=device) * 6.28
    return q, k, positions, torch.cat([angles.cos(), angles.sin()], -1)


def _launch(operator, inputs: Inputs) -> Launch:  # type: ignore[no-untyped-def]
    return lambda: operator(*inputs)


def _error(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> float:
    got = apply_rope(q, k, positions, cos_sin)
    want = reference.apply_rope(q.float(), k.float(), positions, cos_sin)
    return max(relative_error(mine, other) for mine, other in zip(got, want, strict=True))
