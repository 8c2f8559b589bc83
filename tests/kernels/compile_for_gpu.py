"""Compile every Triton kernel for GPUs this machine need not have, as its launcher launches it.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel. Launches are
replaced by compilations, so tile shapes, warps and specialised arguments are the launchers' own.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from support import compiled_kernel
from support.compiled_kernel import POINTER_TYPES

from pagoda.kernels import plan_attention
from pagoda.kernels.score_rule import ScoreRule
from pagoda.kernels.triton_ops import attention_decode, attention_prefill
from pagoda.kernels.triton_ops.kv_write import write_kv
from pagoda.kernels.triton_ops.rms_norm import add_rms_norm, rms_norm
from pagoda.kernels.triton_ops.rope import apply_rope
from pagoda.kernels.triton_ops.silu_mul import silu_mul

__all__ = ["CAPABILITIES", "POINTER_TYPES", "compiling"]

CAPABILITIES: Sequence[int] = compiled_kernel.CAPABILITIES


def compiling(case: str, capabilities: Sequence[int] | None = None) -> AbstractContextManager[None]:
    """Compile for the capabilities, all by default, and print what each kernel would use."""
    return compiled_kernel.compiling(
        case, capabilities or CAPABILITIES, lambda facts: print(json.dumps(facts))
    )


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
    with compiling(f"{head_dim} {dtype} {rule.window} {rule.soft_cap}"):
        attention_decode.decode(q, cache, cache, batch, rule, q, num_splits=4)
        attention_prefill.prefill(q, cache, cache, batch, rule, q)


def compile_elementwise() -> None:
    """Every other kernel, in bf16."""
    x = torch.zeros(16, 4096, dtype=torch.bfloat16)
    q, k = torch.zeros(16, 32, 128).bfloat16(), torch.zeros(16, 8, 128).bfloat16()
    cache = torch.zeros(2, 16, 8, 128).bfloat16()
    index = torch.zeros(16, dtype=torch.int64)
    with compiling("bf16"):
        rms_norm(x, x[0], 1e-5, None)
        rms_norm(q, q[0, 0], 1e-5, None)
        add_rms_norm(x, x, x[0], 1e-5)
        apply_rope(q, k, index, torch.zeros(64, 128))
        silu_mul(x)
        write_kv(k, k, cache, cache, index)


if __name__ == "__main__":
    compile_elementwise()
    for head_dim in (128, 256):
        compile_attention(head_dim, torch.bfloat16, ScoreRule(0.1))
    compile_attention(128, torch.float32, ScoreRule(0.1))
    compile_attention(80, torch.float16, ScoreRule(0.1, window=1024, soft_cap=30.0))
