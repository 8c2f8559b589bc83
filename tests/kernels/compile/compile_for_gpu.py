"""Compile every Triton kernel for GPUs this machine need not have, as its launcher launches it.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel. Launches are
replaced by compilations, so tile shapes, warps and specialised arguments are the launchers' own.
"""

import json
from collections.abc import Callable, Sequence

import torch
from support.compiled_kernel import CAPABILITIES, compile_launches

from pagoda_kernels import plan_attention
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton import decode as attention_decode
from pagoda_kernels.attention.triton import prefill as attention_prefill
from pagoda_kernels.gate.triton.silu_mul import silu_mul
from pagoda_kernels.kv.triton.write_kv import write_kv
from pagoda_kernels.norm.triton.rms_norm import add_rms_norm, rms_norm
from pagoda_kernels.rope.triton import apply_rope


def compile_each(
    case: str, launches: Callable[[], object], capabilities: Sequence[int] = CAPABILITIES
) -> None:
    """Compile what is launched for every GPU and print what each kernel would use."""
    compile_launches(case, launches, lambda facts: print(json.dumps(facts)), capabilities)


def compile_attention(head_dim: int, dtype: torch.dtype, rule: ScoreRule) -> None:
    """Both attention kernels and the merge, on a batch of one decode and one prefill."""
    batch = plan_attention(
        seqlens_q=[1, 127],
        context_lens=[4096, 127],
        block_tables=[[0] * 256, [0] * 8],
        block_size=16,
        device=torch.device("cpu"),
    )
    q = torch.zeros(128, 32, head_dim, dtype=dtype)
    cache = torch.zeros(1, 16, 8, head_dim, dtype=dtype)

    def launches() -> None:
        attention_decode.decode(q, cache, cache, batch, rule, q, num_splits=4)
        attention_prefill.prefill(q, cache, cache, batch, rule, q)

    compile_each(f"{head_dim} {dtype} {rule.window} {rule.soft_cap}", launches)


def compile_elementwise() -> None:
    """Every other kernel, in bf16."""
    x = torch.zeros(16, 4096, dtype=torch.bfloat16)
    q, k = torch.zeros(16, 32, 128).bfloat16(), torch.zeros(16, 8, 128).bfloat16()
    cache = torch.zeros(2, 16, 8, 128).bfloat16()
    index = torch.zeros(16, dtype=torch.int64)

    def launches() -> None:
        rms_norm(x, x[0], 1e-5, None)
        rms_norm(q, q[0, 0], 1e-5, None)
        add_rms_norm(x, x, x[0], 1e-5)
        apply_rope(q, k, index, torch.zeros(64, 128))
        silu_mul(x)
        write_kv(k, k, cache, cache, index)

    compile_each("bf16", launches)


if __name__ == "__main__":
    compile_elementwise()
    for head_dim in (128, 256, 512):
        compile_attention(head_dim, torch.bfloat16, ScoreRule(0.1))
    compile_attention(128, torch.float32, ScoreRule(0.1))
    compile_attention(80, torch.float16, ScoreRule(0.1, window=1024, soft_cap=30.0))
