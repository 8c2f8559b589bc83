"""Operators of a paged-KV transformer. Triton is imported only when a CUDA tensor first arrives."""

from pagoda_kernels.attention import paged_attention
from pagoda_kernels.attention_batch import AttentionBatch
from pagoda_kernels.attention_plan import PAD_SLOT, decode_batch, plan_attention
from pagoda_kernels.block_copy import (
    copy_blocks,
    digest_pool,
    gather_blocks,
    scatter_blocks,
)
from pagoda_kernels.block_digest import DIGEST_BYTES, digest_blocks
from pagoda_kernels.gelu_mul import gelu_mul
from pagoda_kernels.kv_write import write_kv
from pagoda_kernels.kv_write_fused import write_qkv
from pagoda_kernels.lora import add_lora
from pagoda_kernels.mla import mla_decode, mla_prefill
from pagoda_kernels.moe import fused_moe
from pagoda_kernels.moe_routing import route_topk
from pagoda_kernels.quant_matmul import fp8_matmul, quant_matmul, quantise_fp8
from pagoda_kernels.quant_pack import (
    pack_awq,
    pack_gptq,
    quantise_fp8_weight,
    quantise_int4,
    quantise_int8,
)
from pagoda_kernels.quant_weights import Fp8Weight, Int4Weight, Int8Weight, QuantWeight
from pagoda_kernels.rms_norm import add_rms_norm, rms_norm
from pagoda_kernels.rms_norm_quantised import add_rms_norm_quantised, rms_norm_quantised
from pagoda_kernels.rope import apply_rope
from pagoda_kernels.sampling import Sampled, penalise_logits, sample_tokens
from pagoda_kernels.sampling_rows import SamplingRows, plan_sampling
from pagoda_kernels.silu_mul import silu_mul
from pagoda_kernels.silu_mul_quantised import silu_mul_quantised
from pagoda_kernels.varlen_batch import VarlenBatch, plan_varlen

__all__ = [
    "DIGEST_BYTES",
    "PAD_SLOT",
    "AttentionBatch",
    "Fp8Weight",
    "Int4Weight",
    "Int8Weight",
    "QuantWeight",
    "Sampled",
    "SamplingRows",
    "VarlenBatch",
    "add_lora",
    "add_rms_norm",
    "add_rms_norm_quantised",
    "apply_rope",
    "copy_blocks",
    "decode_batch",
    "digest_blocks",
    "digest_pool",
    "fp8_matmul",
    "fused_moe",
    "gather_blocks",
    "gelu_mul",
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
    "sample_tokens",
    "scatter_blocks",
    "silu_mul",
    "silu_mul_quantised",
    "write_kv",
    "write_qkv",
]
