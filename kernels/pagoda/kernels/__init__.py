"""Operators of a paged-KV transformer. Triton is imported only when a CUDA tensor first arrives."""

from pagoda.kernels.attention import paged_attention
from pagoda.kernels.attention_batch import AttentionBatch
from pagoda.kernels.attention_plan import PAD_SLOT, plan_attention
from pagoda.kernels.block_copy import gather_blocks, scatter_blocks
from pagoda.kernels.kv_write import write_kv
from pagoda.kernels.rms_norm import add_rms_norm, rms_norm
from pagoda.kernels.rope import apply_rope
from pagoda.kernels.silu_mul import silu_mul

__all__ = [
    "PAD_SLOT",
    "AttentionBatch",
    "add_rms_norm",
    "apply_rope",
    "gather_blocks",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "scatter_blocks",
    "silu_mul",
    "write_kv",
]
