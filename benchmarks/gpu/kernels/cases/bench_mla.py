"""Latent attention of DeepSeek-V3's shape, beside torch on contiguous latents and SDPA."""

import torch
import torch.nn.functional as F

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import poisoned_like, relative_error
from pagoda_kernels import AttentionBatch, plan_attention
from pagoda_kernels.attention import reference
from pagoda_kernels.attention.mla import mla_decode, mla_prefill
from pagoda_kernels.attention.varlen_batch import plan_varlen

RANK, ROPE_DIM, BLOCK_SIZE = 512, 64, 64
DIM_QK, DIM_V = 192, 128
SCALE = DIM_QK**-0.5
HEADS_AT_ONCE = 4
TOLERANCE = 8e-3


def cases(device: torch.device) -> list[Case]:
    decodes = [
        decode_case(device, batch, heads, 8192) for heads in (16, 128) for batch in (1, 16, 64)
    ]
    return [*decodes, prefill_case(device, 8192, 16)]


def decode_case(device: torch.device, batch: int, num_heads: int, context: int) -> Case:
    """One new token per sequence; 128 heads do 2 * 128 operations on each cached element read."""
    width = RANK + ROPE_DIM
    num_bytes = 2 * batch * (context * width + num_heads * (width + RANK))
    num_flops = 2 * batch * context * num_heads * (width + RANK)
    is_compute_bound = num_heads >= 128
    return Case(
        op="mla",
        name=f"decode b{batch} H{num_heads} ctx{context} bf16",
        check=lambda seed: _decode_error(_decode_inputs(device, batch, num_heads, context, seed)),
        tolerance=TOLERANCE,
        build=lambda: _decode_launch(*_decode_inputs(device, batch, num_heads, context)),
        num_bytes=0 if is_compute_bound else num_bytes,
        num_flops=num_flops if is_compute_bound else 0,
        baselines={
            "matmul": lambda: _matmul(*_decode_inputs(device, batch, num_heads, context)),
        },
    )


def prefill_case(device: torch.device, num_tokens: int, num_heads: int) -> Case:
    """One whole prompt with expanded K and V: limited by the products under the triangle."""
    pairs = num_tokens * (num_tokens + 1) // 2
    return Case(
        op="mla",
        name=f"prefill b1 H{num_heads} ctx{num_tokens} causal bf16",
        check=lambda seed: _prefill_error(device, num_tokens, num_heads, seed),
        tolerance=TOLERANCE,
        build=lambda: _prefill_launch(device, num_tokens, num_heads),
        num_flops=2 * pairs * num_heads * (DIM_QK + DIM_V),
        baselines={"sdpa": lambda: _sdpa(*_prefill_inputs(device, num_tokens, num_heads))},
    )


def _decode_inputs(
    device: torch.device, batch: int, num_heads: int, context: int, seed: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, AttentionBatch]:
    if seed is not None:
        torch.manual_seed(seed)
    blocks_each = -(-context // BLOCK_SIZE)
    tables = torch.randperm(batch * blocks_each).view(batch, blocks_each).tolist()
    shape = (batch * blocks_each, BLOCK_SIZE, RANK + ROPE_DIM)
    cache = torch.randn(shape, dtype=torch.bfloat16, device=device)
    q = torch.randn(batch, num_heads, RANK + ROPE_DIM, dtype=torch.bfloat16, device=device)
    plan = plan_attention(
        seqlens_q=[1] * batch,
        context_lens=[context] * batch,
        block_tables=tables,
        block_size=BLOCK_SIZE,
        device=device,
    )
    return q, cache, plan


def _decode_launch(q: torch.Tensor, cache: torch.Tensor, batch: AttentionBatch) -> Launch:
    out = torch.empty_like(q[..., :RANK])
    return lambda: mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=RANK, out=out)


def _decode_error(inputs: tuple[torch.Tensor, torch.Tensor, AttentionBatch]) -> float:
    q, cache, batch = inputs
    out = poisoned_like(q[..., :RANK])
    mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=RANK, out=out)
    want = reference.mla_decode(q, cache, batch, scale=SCALE, kv_lora_rank=RANK)
    return relative_error(out, want)


def _matmul(q: torch.Tensor, cache: torch.Tensor, batch: AttentionBatch) -> Launch:
    """Three products in bf16; the latents are already contiguous, which saves the block tables."""
    latents = cache[batch.block_tables.long()].flatten(1, 2)

    def launch() -> torch.Tensor:
        weights = torch.matmul(q, latents.transpose(1, 2)).mul_(SCALE).softmax(-1)
        return torch.matmul(weights, latents[..., :RANK])

    return launch


def _prefill_inputs(
    device: torch.device, num_tokens: int, num_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k = torch.randn(2, num_tokens, num_heads, DIM_QK, dtype=torch.bfloat16, device=device)
    v = torch.randn(num_tokens, num_heads, DIM_V, dtype=torch.bfloat16, device=device)
    return q, k, v


def _prefill_launch(device: torch.device, num_tokens: int, num_heads: int) -> Launch:
    q, k, v = _prefill_inputs(device, num_tokens, num_heads)
    out = torch.empty_like(v)
    batch = plan_varlen(seqlens_q=[num_tokens], seqlens_k=[num_tokens], device=device)
    return lambda: mla_prefill(q, k, v, batch, scale=SCALE, out=out)


def _prefill_error(device: torch.device, num_tokens: int, num_heads: int, seed: int) -> float:
    """The reference a few heads at a time, so that the scores of a long prompt fit."""
    torch.manual_seed(seed)
    q, k, v = _prefill_inputs(device, num_tokens, num_heads)
    lengths = [num_tokens]
    batch = plan_varlen(seqlens_q=lengths, seqlens_k=lengths, device=device)
    out = poisoned_like(v)
    mla_prefill(q, k, v, batch, scale=SCALE, out=out)
    parts = zip(*(x.split(HEADS_AT_ONCE, 1) for x in (q, k, v)), strict=True)
    want = [reference.mla_prefill(*part, lengths, lengths, scale=SCALE) for part in parts]
    return relative_error(out, torch.cat(want, 1))


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Launch:
    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (q, k, v))
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)
