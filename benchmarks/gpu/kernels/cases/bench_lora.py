"""Adapters mixed in a decode batch; the floor is one read of those in use and of the outputs."""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels.lora import reference
from pagoda_kernels.lora.add_lora import add_lora

TOLERANCE = 8e-3
Inputs = tuple[torch.Tensor, ...]


def cases(device: torch.device) -> list[Case]:
    return [
        lora_case(device, 64, num_adapters=8, ranks=(16,)),
        lora_case(device, 64, num_adapters=32, ranks=(8, 16, 64)),
        lora_case(device, 4096, num_adapters=4, ranks=(16, 64)),
    ]


def lora_case(
    device: torch.device, num_tokens: int, *, num_adapters: int, ranks: tuple[int, ...]
) -> Case:
    """Every adapter has tokens, a quarter of the tokens has none."""
    num_k = num_n = 4096
    total_rank = sum(ranks[i % len(ranks)] for i in range(num_adapters))
    rows = num_tokens - num_tokens // 4
    return Case(
        op="lora",
        name=f"T{num_tokens} N{num_n} K{num_k} L{num_adapters} ranks {ranks} bf16",
        check=lambda seed: _error(_inputs(device, num_tokens, num_adapters, ranks, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(_inputs(device, num_tokens, num_adapters, ranks)),
        num_bytes=2 * (total_rank * (num_k + num_n) + rows * (num_k + 2 * num_n)),
        baselines={"base layer": lambda: _base(device, num_tokens, num_n, num_k)},
    )


def _inputs(
    device: torch.device,
    num_tokens: int,
    num_adapters: int,
    ranks: tuple[int, ...],
    seed: int | None = None,
) -> Inputs:
    if seed is not None:
        torch.manual_seed(seed)
    size, max_rank = 4096, max(ranks)
    options = {"dtype": torch.bfloat16, "device": device}
    adapters = torch.arange(num_tokens) % num_adapters
    adapters[::4] = -1
    return (
        torch.randn(num_tokens, size, **options),  # type: ignore[call-overload]
        torch.randn(num_tokens, size, **options),  # type: ignore[call-overload]
        torch.randn(num_adapters, max_rank, size, **options).mul_(size**-0.5),  # type: ignore[call-overload]
        torch.randn(num_adapters, size, max_rank, **options),  # type: ignore[call-overload]
        adapters.int().to(device),
        torch.tensor([ranks[i % len(ranks)] for i in range(num_adapters)], device=device).int(),
        torch.rand(num_adapters, device=device) + 0.5,
    )


def _launch(inputs: Inputs) -> Launch:
    out, x, a, b, adapters, ranks, scales = inputs
    return lambda: add_lora(out, x, a, b, adapters, ranks, scales)


def _error(inputs: Inputs) -> float:
    """Of what is added, so that a wrong adapter does not hide behind the base output."""
    out, x, a, b, adapters, ranks, scales = inputs
    zero = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    want = reference.add_lora(zero, x, a, b, adapters, ranks, scales)
    got = torch.zeros_like(out)
    add_lora(got, x, a, b, adapters, ranks, scales)
    return relative_error(got, want)


def _base(device: torch.device, num_tokens: int, num_n: int, num_k: int) -> Launch:
    """What the adapters come on top of."""
    x = torch.randn(num_tokens, num_k, dtype=torch.bfloat16, device=device)
    weight = torch.randn(num_n, num_k, dtype=torch.bfloat16, device=device)
    return lambda: torch.nn.functional.linear(x, weight)
