"""Mixture of experts at a decode batch and at a prefill chunk, and its routing.

The floor of the decode is one read of the experts in use: with 64 tokens and 8 of 128 experts each,
all but 128 * (1 - 8 / 128) ** 64, about two, are.
"""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from gpu.kernels.tunable import Tunable, tiles
from pagoda_kernels.matmul.pack import quantise_fp8_weight
from pagoda_kernels.matmul.triton.matmul_tiles import grouped_rows, tile_key
from pagoda_kernels.matmul.weights import FP8, spread_blocks
from pagoda_kernels.moe.fused_moe import fused_moe
from pagoda_kernels.moe.routing import route_topk

HIDDEN, WIDTH, NUM_EXPERTS, TOP_K = 2048, 768, 128, 8
"""Qwen3-30B-A3B."""

TOLERANCE = 8e-3
Experts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]


def cases(device: torch.device) -> list[Case]:
    return [
        moe_case(device, 64, torch.bfloat16, goal=0.7),
        moe_case(device, 64, FP8, goal=0.7),
        moe_case(device, 4096, torch.bfloat16),
        routing_case(device, 64),
    ]


def tunables(device: torch.device) -> list[Tunable]:
    num_tokens = 64
    return [
        Tunable(
            op=op,
            shape=tile_key(grouped_rows(num_tokens * TOP_K, NUM_EXPERTS), 2),
            case=moe_case(device, num_tokens, dtype),
            candidates=tiles(
                block_m=(16,),
                block_n=(32, 64, 128),
                block_k=(64, 128),
                num_warps=(4, 8),
                num_stages=(3, 4, 5),
            ),
        )
        for op, dtype in (("moe", torch.bfloat16), ("moe e4m3", FP8))
    ]


def moe_case(
    device: torch.device, num_tokens: int, dtype: torch.dtype, goal: float | None = None
) -> Case:
    """The experts' weights once; or the arithmetic, where every expert has many rows."""
    elements = 3 * HIDDEN * WIDTH
    unused = (1 - TOP_K / NUM_EXPERTS) ** num_tokens
    num_bytes = int(NUM_EXPERTS * (1 - unused) * elements * dtype.itemsize)
    is_prefill = num_tokens > 1024
    return Case(
        op="moe",
        name=f"T{num_tokens} H{HIDDEN} I{WIDTH} E{NUM_EXPERTS} top{TOP_K} {_name(dtype)}",
        check=lambda seed: _error(device, num_tokens, dtype, seed),
        tolerance=TOLERANCE,
        build=lambda: _launch(device, num_tokens, dtype),
        num_bytes=0 if is_prefill else num_bytes,
        num_flops=2 * elements * num_tokens * TOP_K if is_prefill else 0,
        goal=goal,
    )


def routing_case(device: torch.device, num_tokens: int) -> Case:
    """Softmax and the best of all experts; a launch, next to no bytes."""
    return Case(
        op="moe_routing",
        name=f"T{num_tokens} E{NUM_EXPERTS} top{TOP_K} bf16",
        check=lambda seed: _routing_error(_logits(device, num_tokens, seed)),
        tolerance=1e-5,
        build=lambda: _routing_launch(_logits(device, num_tokens)),
        num_bytes=num_tokens * (2 * NUM_EXPERTS + 8 * TOP_K),
    )


def _name(dtype: torch.dtype) -> str:
    return "fp8 block" if dtype == FP8 else "bf16"


def _experts(device: torch.device, dtype: torch.dtype) -> Experts:
    """(gate_up, down, gate_up_scale, down_scale), scaled to keep the size of x."""
    shapes = (NUM_EXPERTS, 2 * WIDTH, HIDDEN), (NUM_EXPERTS, HIDDEN, WIDTH)
    gate_up, down = (
        torch.randn(shape, dtype=torch.bfloat16, device=device).mul_(shape[2] ** -0.5)
        for shape in shapes
    )
    if dtype != FP8:
        return gate_up, down, None, None
    made_in = [quantise_fp8_weight(expert, "block") for expert in gate_up]
    made_out = [quantise_fp8_weight(expert, "block") for expert in down]
    return (
        torch.stack([weight.values.view(torch.uint8) for weight in made_in]).view(FP8),
        torch.stack([weight.values.view(torch.uint8) for weight in made_out]).view(FP8),
        torch.stack([weight.scales for weight in made_in]),
        torch.stack([weight.scales for weight in made_out]),
    )


def _tokens(
    device: torch.device, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, weights, experts)."""
    x = torch.randn(num_tokens, HIDDEN, dtype=torch.bfloat16, device=device)
    return x, *route_topk(_logits(device, num_tokens), TOP_K, renormalise=True)


def _logits(device: torch.device, num_tokens: int, seed: int | None = None) -> torch.Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    return torch.randn(num_tokens, NUM_EXPERTS, dtype=torch.bfloat16, device=device)


def _launch(device: torch.device, num_tokens: int, dtype: torch.dtype) -> Launch:
    gate_up, down, in_scale, out_scale = _experts(device, dtype)
    x, weights, experts = _tokens(device, num_tokens)
    return lambda: fused_moe(
        x, gate_up, down, weights, experts, gate_up_scale=in_scale, down_scale=out_scale
    )


def _error(device: torch.device, num_tokens: int, dtype: torch.dtype, seed: int) -> float:
    """Against one expert at a time in fp32."""
    torch.manual_seed(seed)
    gate_up, down, in_scale, out_scale = _experts(device, dtype)
    x, weights, experts = _tokens(device, num_tokens)
    got = fused_moe(
        x, gate_up, down, weights, experts, gate_up_scale=in_scale, down_scale=out_scale
    )
    want = torch.zeros(x.shape, dtype=torch.float32, device=device)
    for expert in range(NUM_EXPERTS):
        tokens, places = (experts == expert).nonzero(as_tuple=True)
        wide_in, wide_out = gate_up[expert].float(), down[expert].float()
        if in_scale is not None and out_scale is not None:
            wide_in *= spread_blocks(in_scale[expert], *wide_in.shape)
            wide_out *= spread_blocks(out_scale[expert], *wide_out.shape)
        gate, up = (x[tokens].float() @ wide_in.T).chunk(2, -1)
        part = (gate * torch.sigmoid(gate) * up) @ wide_out.T
        want.index_add_(0, tokens, part * weights[tokens, places][:, None])
    return relative_error(got, want)


def _routing_launch(logits: torch.Tensor) -> Launch:
    return lambda: route_topk(logits, TOP_K, renormalise=True)


def _routing_error(logits: torch.Tensor) -> float:
    """Of the weights: which of two equal logits is taken does not matter."""
    got, experts = route_topk(logits, TOP_K, renormalise=True)
    scores = logits.double().softmax(1)
    want = scores.topk(TOP_K, 1).values
    want = want / want.sum(1, keepdim=True)
    taken = scores.gather(1, experts.long())
    return max(relative_error(got, want), relative_error(taken / taken.sum(1, keepdim=True), want))
