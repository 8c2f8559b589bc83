"""Operators of a paged-KV transformer, one folder a family.

In each folder lie, side by side: the operator, which checks its arguments and dispatches by device;
its CPU path; its Triton kernels; its readable reference. Knows tensors. Knows nothing of models,
sequences or networks. Triton is imported only when a CUDA tensor first arrives.
"""

from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.attention.mla import mla_decode, mla_prefill
from pagoda_kernels.attention.paged_attention import paged_attention
from pagoda_kernels.attention.plan import (
    PAD_SLOT,
    decode_batch,
    plan_attention,
    select_sequences,
)
from pagoda_kernels.attention.varlen_batch import VarlenBatch, plan_varlen
from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu, clamped_swiglu
from pagoda_kernels.gate.gelu_mul import gelu_mul
from pagoda_kernels.gate.silu_mul import silu_mul
from pagoda_kernels.gate.silu_mul_quantised import silu_mul_quantised
from pagoda_kernels.kv.block_copy import (
    copy_blocks,
    digest_pool,
    gather_blocks,
    scatter_blocks,
)
from pagoda_kernels.kv.block_digest import DIGEST_BYTES, digest_blocks
from pagoda_kernels.kv.write_kv import write_kv
from pagoda_kernels.kv.write_latent import write_latent
from pagoda_kernels.kv.write_qkv import write_qkv
from pagoda_kernels.lora.add_lora import add_lora
from pagoda_kernels.matmul.pack import (
    pack_awq,
    pack_gptq,
    quantise_fp8_weight,
    quantise_int4,
    quantise_int8,
)
from pagoda_kernels.matmul.quant_matmul import fp8_matmul, quant_matmul, quantise_fp8
from pagoda_kernels.matmul.weights import Fp8Weight, Int4Weight, Int8Weight, QuantWeight
from pagoda_kernels.moe.fused_moe import fused_moe
from pagoda_kernels.moe.routing import route_topk
from pagoda_kernels.norm.rms_norm import add_rms_norm, rms_norm
from pagoda_kernels.norm.rms_norm_quantised import add_rms_norm_quantised, rms_norm_quantised
from pagoda_kernels.rope.apply_rope import apply_rope
from pagoda_kernels.sampling.logit_bias import LogitBias
from pagoda_kernels.sampling.rows import (
    SamplingColumn,
    SamplingRows,
    plan_sampling,
    sampling_column,
)
from pagoda_kernels.sampling.sample_tokens import (
    Sampled,
    largest_tokens,
    penalise_logits,
    sample_changed,
    sample_tokens,
)
from pagoda_kernels.sampling.seen_tokens import SeenTokens

__all__ = [
    "DIGEST_BYTES",
    "PAD_SLOT",
    "AttentionBatch",
    "ClampedSwiglu",
    "Fp8Weight",
    "Int4Weight",
    "Int8Weight",
    "LogitBias",
    "QuantWeight",
    "Sampled",
    "SamplingColumn",
    "SamplingRows",
    "SeenTokens",
    "VarlenBatch",
    "add_lora",
    "add_rms_norm",
    "add_rms_norm_quantised",
    "apply_rope",
    "clamped_swiglu",
    "copy_blocks",
    "decode_batch",
    "digest_blocks",
    "digest_pool",
    "fp8_matmul",
    "fused_moe",
    "gather_blocks",
    "gelu_mul",
    "largest_tokens",
    "mla_decode",
    "mla_prefill",
    "pack_awq",
    "pack_gptq",
    "paged_attention",
    "penalise_logits",
    "plan_attention",
    "plan_sampling",
    "plan_varlen",
    "quant_matmul",
    "quantise_fp8",
    "quantise_fp8_weight",
    "quantise_int4",
    "quantise_int8",
    "rms_norm",
    "rms_norm_quantised",
    "route_topk",
    "sample_changed",
    "sample_tokens",
    "sampling_column",
    "scatter_blocks",
    "select_sequences",
    "silu_mul",
    "silu_mul_quantised",
    "write_kv",
    "write_latent",
    "write_qkv",
]
