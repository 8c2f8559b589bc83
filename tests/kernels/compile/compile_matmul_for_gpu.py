"""Compile the quantised matmuls, the mixture of experts, LoRA and GELU as they are launched.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel.
"""

import torch
from compile_for_gpu import compile_each

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu
from pagoda_kernels.gate.triton.gelu_mul import gelu_mul
from pagoda_kernels.lora.triton import add_lora
from pagoda_kernels.matmul import pack as quant_pack
from pagoda_kernels.matmul.triton.fp8_matmul import fp8_matmul
from pagoda_kernels.matmul.triton.int4_matmul import int4_matmul
from pagoda_kernels.matmul.triton.int8_matmul import int8_matmul
from pagoda_kernels.matmul.triton.quantise_fp8 import quantise_fp8
from pagoda_kernels.matmul.weights import FP8
from pagoda_kernels.moe.triton.fused_moe import fused_moe
from pagoda_kernels.moe.triton.routing import route_topk


def compile_quant_matmul(num_rows: int, dtype: torch.dtype, group_size: int = 128) -> None:
    """Weight-only kernels at one number of rows."""
    weight = torch.zeros(4096, 1024, dtype=dtype)
    x = torch.zeros(num_rows, 1024, dtype=dtype)
    out = torch.zeros(num_rows, 4096, dtype=dtype)
    eight, four = quant_pack.quantise_int8(weight), quant_pack.quantise_int4(weight, group_size)

    def launches() -> None:
        int8_matmul(x, eight, out, num_splits=2)
        int4_matmul(x, four, out, num_splits=2)

    compile_each(f"{num_rows} rows {dtype}", launches)


def compile_fp8_matmul(num_rows: int, granularity: str) -> None:
    """With fp8 instructions where the GPU has them."""
    weight = quant_pack.quantise_fp8_weight(torch.zeros(4096, 1024), granularity)
    x = torch.zeros(num_rows, 1024).to(FP8)
    scale = torch.ones(num_rows, 8) if granularity == "block" else torch.ones(num_rows)
    out = torch.zeros(num_rows, 4096).bfloat16()
    compile_each(
        f"{num_rows} rows {granularity}",
        lambda: fp8_matmul(x, scale, weight, out, num_splits=2),
    )


def compile_moe(num_tokens: int, dtype: torch.dtype) -> None:
    """Routing, sorting and the experts, weights in `dtype`."""
    hidden, width, num_experts, top_k = 2048, 768, 128, 8
    x = torch.zeros(num_tokens, hidden, dtype=torch.bfloat16 if dtype == FP8 else dtype)
    gate_up = torch.empty(num_experts, 2 * width, hidden, dtype=dtype, device="meta")
    down = torch.empty(num_experts, hidden, width, dtype=dtype, device="meta")
    weights = torch.zeros(num_tokens, top_k)
    experts = torch.zeros(num_tokens, top_k, dtype=torch.int32)
    case = f"{num_tokens} tokens {dtype}"
    scales: tuple[torch.Tensor | None, torch.Tensor | None] = None, None
    if dtype == FP8:
        scales = torch.zeros(num_experts, 12, 16), torch.zeros(num_experts, 16, 6)
    compile_each(case, lambda: fused_moe(x, gate_up, down, weights, experts, *scales))
    if dtype == FP8:
        return
    biases = x.new_zeros(num_experts, 2 * width), x.new_zeros(num_experts, hidden)
    gate = ClampedSwiglu(limit=7.0, alpha=1.702)

    def launches() -> None:
        fused_moe(
            x,
            gate_up,
            down,
            weights,
            experts,
            *scales,
            gate_up_bias=biases[0],
            down_bias=biases[1],
            gate=gate,
        )

    compile_each(f"{case}, gpt-oss", launches)
    compile_each(
        f"{case}, Gemma 4",
        lambda: fused_moe(x, gate_up, down, weights, experts, *scales, gate="gelu_tanh"),
    )


def compile_others() -> None:
    """Routing, LoRA, activations."""
    x = torch.zeros(64, 4096, dtype=torch.bfloat16)
    adapters, ranks = torch.zeros(64, dtype=torch.int32), torch.full((8,), 16, dtype=torch.int32)

    def launches() -> None:
        route_topk(x[:, :128], 8, "softmax", True, None, 1, 1, 1.0)
        route_topk(x[:, :256].float(), 8, "sigmoid", True, torch.zeros(256), 8, 4, 2.5)
        for rank in (16, 64):
            a, b = x.new_zeros(8, rank, 4096), x.new_zeros(8, 4096, rank)
            add_lora(x, x, a, b, adapters, ranks, torch.ones(8), num_splits=2)
        gelu_mul(x, "tanh")
        gelu_mul(x, "none")
        quantise_fp8(x, 128, None)
        quantise_fp8(x, None, None)

    compile_each("bf16", launches)


if __name__ == "__main__":
    for num_rows in (1, 32, 64, 512):
        compile_quant_matmul(num_rows, torch.bfloat16)
        compile_fp8_matmul(num_rows, "block")
    for num_tokens in (64, 4096):
        for dtype in (torch.bfloat16, FP8):
            compile_moe(num_tokens, dtype)
    compile_others()
    compile_fp8_matmul(16, "channel")
    compile_quant_matmul(16, torch.float16, group_size=32)
    compile_quant_matmul(16, torch.float32)
