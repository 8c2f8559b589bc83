"""Compile attention with quantised caches, sinks and descriptors, the fused KV write, and MLA.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel.
"""

import torch
from compile_for_gpu import compile_each

from pagoda_kernels import AttentionBatch, plan_attention
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton import decode as attention_decode
from pagoda_kernels.attention.triton import prefill as attention_prefill
from pagoda_kernels.attention.triton.mla_decode import mla_decode
from pagoda_kernels.attention.triton.mla_prefill import mla_prefill
from pagoda_kernels.attention.varlen_batch import plan_varlen
from pagoda_kernels.kv.triton.write_kv import write_kv
from pagoda_kernels.kv.triton.write_qkv import write_qkv

FP8 = torch.float8_e4m3fn


def batch_of(block_size: int) -> AttentionBatch:
    """One decode and one prefill."""
    return plan_attention(
        seqlens_q=[1, 127],
        context_lens=[4096, 127],
        block_tables=[[0] * (4096 // block_size), [0] * 8],
        block_size=block_size,
        device=torch.device("cpu"),
    )


def compile_attention(head_dim: int, kv_dtype: torch.dtype, window: int | None = None) -> None:
    """Decode and prefill by pointers, as gpt-oss and as quantised."""
    q = torch.zeros(128, 32, head_dim, dtype=torch.bfloat16)
    cache = torch.zeros(2, 16, 8, head_dim).to(kv_dtype)
    scale = None if kv_dtype == torch.bfloat16 else torch.ones(8)
    rule = ScoreRule(0.1, window, None, torch.zeros(32), scale, scale)
    batch = batch_of(16)

    def launches() -> None:
        attention_decode.decode(q, cache, cache, batch, rule, q, is_batch_invariant=True)
        attention_prefill.prefill(q, cache, cache, batch, rule, q)

    compile_each(f"pointers {head_dim} {kv_dtype} {window}", launches)


def compile_described(
    head_dim: int, block_size: int, kv_dtype: torch.dtype, window: int | None = None
) -> None:
    """Prefill by tensor descriptors, on GPUs that have bulk copies."""
    q = torch.zeros(128, 32, head_dim, dtype=torch.bfloat16)
    cache = torch.zeros(2, block_size, 8, head_dim).to(kv_dtype)
    scale = None if kv_dtype == torch.bfloat16 else torch.ones(1)
    rule = ScoreRule(0.1, window, None, None, scale, scale)
    batch = batch_of(block_size)
    compile_each(
        f"described {head_dim} b{block_size} {kv_dtype} {window}",
        lambda: attention_prefill.prefill(q, cache, cache, batch, rule, q),
        (90, 100),
    )


def compile_alibi() -> None:
    """Decode and prefill of MPT's shape, by pointers and by tensor descriptors."""
    q = torch.zeros(128, 32, 128, dtype=torch.bfloat16)
    cache = torch.zeros(2, 64, 32, 128, dtype=torch.bfloat16)
    rule = ScoreRule(0.1, alibi_slopes=torch.zeros(32))
    batch = batch_of(64)

    def launches() -> None:
        attention_decode.decode(q, cache, cache, batch, rule, q)
        attention_prefill.prefill(q, cache, cache, batch, rule, q)

    compile_each("ALiBi", launches, (80, 90))


def compile_kv_write(kv_dtype: torch.dtype) -> None:
    """Both KV writes, of Qwen3's shape."""
    qkv = torch.zeros(16, (32 + 16) * 128).bfloat16()
    k = qkv.unflatten(1, (-1, 128))[:, 32:40]
    cache = torch.zeros(2, 16, 8, 128).to(kv_dtype)
    scale = None if kv_dtype == torch.bfloat16 else torch.ones(8)
    norm, index = torch.zeros(128).bfloat16(), torch.zeros(16, dtype=torch.int64)

    def launches() -> None:
        write_kv(k, k, cache, cache, index, scale, scale)
        write_qkv(
            qkv,
            index,
            torch.zeros(64, 128),
            cache,
            cache,
            index,
            num_heads=32,
            q_norm=norm,
            k_norm=norm,
            eps=1e-6,
            k_scale=scale,
            v_scale=scale,
        )

    compile_each(f"kv write {kv_dtype}", launches)


def compile_mla(num_heads: int, dtype: torch.dtype, with_prefill: bool = True) -> None:
    """Both kernels of DeepSeek's shape."""
    q = torch.zeros(4, num_heads, 576, dtype=dtype)
    cache = torch.zeros(2, 64, 576, dtype=dtype)
    batch = plan_attention(
        seqlens_q=[1] * 4,
        context_lens=[4096] * 4,
        block_tables=[[0] * 64] * 4,
        block_size=64,
        device=torch.device("cpu"),
    )
    lengths = plan_varlen(seqlens_q=[127], seqlens_k=[127], device=torch.device("cpu"))
    expanded = torch.zeros(127, num_heads, 192, dtype=dtype)
    v = expanded[..., :128]

    def launches() -> None:
        mla_decode(q, cache, batch, 0.1, q[..., :512], 4)
        if with_prefill:
            mla_prefill(expanded, expanded, v, lengths, 0.1, v)

    compile_each(f"MLA {num_heads} {dtype}", launches)


def compile_wide_prefill() -> None:
    """Latent attention of a prompt of GLM-4.7-Flash's shape."""
    x = torch.zeros(127, 20, 256, dtype=torch.bfloat16)
    lengths = plan_varlen(seqlens_q=[127], seqlens_k=[127], device=torch.device("cpu"))
    compile_each("MLA 256 and 256", lambda: mla_prefill(x, x, x, lengths, 0.1, x))


if __name__ == "__main__":
    for kv_dtype in (torch.bfloat16, FP8, torch.int8):
        compile_kv_write(kv_dtype)
    compile_attention(128, FP8)
    compile_attention(128, torch.int8)
    compile_attention(64, torch.bfloat16, window=128)
    for head_dim, block_size in ((128, 64), (128, 128), (256, 64)):
        compile_described(head_dim, block_size, torch.bfloat16)
    compile_described(128, 64, FP8)
    compile_described(128, 64, torch.bfloat16, window=4096)
    compile_alibi()
    compile_mla(128, torch.bfloat16)
    compile_mla(16, torch.float16, with_prefill=False)
    compile_wide_prefill()
