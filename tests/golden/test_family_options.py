"""Options of families' configurations change logits as in transformers, in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.decoder_logits import SEQUENCES, assert_close, logits_of
from support.family_checkpoints import make_family_checkpoint
from support.oracle import Oracle
from support.random_tokens import random_tokens

pytestmark = pytest.mark.slow

TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS: dict[str, Any] = {
    "layer_types": TYPES,
    "num_hidden_layers": 3,
    "use_sliding_window": True,
    "sliding_window": 13,
}


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
        ("llama", {"rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}}),
        ("llama", {"rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}),
        ("llama", {"rope_theta": None, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0}}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("llama", {"head_dim": 40}),
        ("qwen2", WINDOWS),
        ("qwen3", WINDOWS),
        ("qwen3_moe", {"norm_topk_prob": False, "tie_word_embeddings": True}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": []}),
        ("qwen3_moe", {"attention_bias": True, "num_experts_per_tok": 8}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1}),
        ("mixtral", {"sliding_window": 13, "num_experts_per_tok": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_options_of_configurations_as_published(
    make_oracle: Callable[..., Oracle], family: str, overrides: dict[str, object]
) -> None:
    """Those of the families whose configurations are older than transformers 5."""
    oracle, tokens = make_oracle(family, **overrides), random_tokens(150)
    found = logits_of(oracle.model.decoder, [tokens], [[100], [50]])
    assert_close(found[0], oracle.logits(tokens))


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("gemma3", {"final_logit_softcapping": 2.0}),
        ("gemma4", {"attention_k_eq_v": False, "attention_bias": True}),
        ("gemma4", {"global_head_dim": 16, "attention_k_eq_v": False}),
        ("gemma4", {"rope_parameters": None, "num_key_value_heads": 4}),
        ("gemma4", {"rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 50.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "linear", "rope_theta": 90.0, "factor": 3.0}}}),
        ("gemma4_small", {"num_kv_shared_layers": 1, "use_double_wide_mlp": False}),
        ("gemma4_small", {"num_hidden_layers": 12, "num_kv_shared_layers": 6, "layer_types": [
            *["sliding_attention"] * 2, "full_attention"] * 4}),
        ("gemma4_small", {"num_kv_shared_layers": 5, "global_head_dim": 16}),
        ("gemma4_small", {"layer_types": None, "num_hidden_layers": 8, "num_kv_shared_layers": 2}),
        ("gemma4_moe", {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 300}),
        ("gemma4_moe", {"num_kv_shared_layers": 0, "top_k_experts": 6, "layer_types": [
            *["full_attention"] * 2, *["sliding_attention"] * 2, "full_attention"]}),
        ("gemma2", {"attention_bias": True, "query_pre_attn_scalar": 256}),
        ("cohere", {"use_qk_norm": False, "attention_bias": True}),
        ("cohere", {"num_key_value_heads": 4, "rope_parameters": {
            "rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}),
        ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("smollm3", {"no_rope_layers": [0, 1], "use_sliding_window": False}),
        ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
        ("olmoe", {"clip_qkv": None, "norm_topk_prob": True}),
        ("qwen2_moe", {"mlp_only_layers": [], "norm_topk_prob": True}),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 9}),
        ("glm", {"partial_rotary_factor": 1.0, "attention_bias": False}),
        ("starcoder2", {"use_bias": False, "sliding_window": None}),
        ("gpt_neox", {"attention_bias": False, "rotary_pct": 1.0, "tie_word_embeddings": True}),
        ("gpt2", {"n_inner": None, "activation_function": "gelu"}),
        ("deepseek_v2", {"q_lora_rank": 20, "topk_method": "group_limited_greedy", "n_group": 3,
            "topk_group": 2, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "mscale": 0.707,
            "mscale_all_dim": 0.707, "original_max_position_embeddings": 64}}),
        ("deepseek_v3", {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False,
            "n_group": 1, "topk_group": 1, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1000.0}}),
        ("deepseek_v3", {"first_k_dense_replace": 2, "tie_word_embeddings": True}),
        ("gpt_oss", {"attention_bias": False, "swiglu_alpha": 0.9, "swiglu_limit": 3.0}),
        ("gpt_oss", {"layer_types": ["full_attention", "sliding_attention"],
                     "num_experts_per_tok": 6, "rope_parameters": None}),
    ],
    ids=str,
)  # fmt: skip
def test_options_of_configurations_as_transformers_saves_them(
    tmp_path: Path, family: str, overrides: dict[str, object]
) -> None:
    oracle = Oracle(make_family_checkpoint(tmp_path, family, **overrides))
    found = logits_of(oracle.model.decoder, SEQUENCES[:1], [[40], [30]])
    assert_close(found[0], oracle.logits(SEQUENCES[0]))
