"""Tiny random models of families, made and saved by transformers: its names, its configuration.

Every parameter is random, biases and norms included, so that a part which the loader forgets
changes the output. A new family is one entry of FAMILY_CONFIGS.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from support.greedy_oracle import auto_class
from support.mxfp4_checkpoints import pack_experts
from support.tiny_checkpoints import BOS_TOKEN_ID, EOS_TOKEN_ID, VOCAB_SIZE, write_byte_tokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": 260,
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 3.0, 7.0],
    "original_max_position_embeddings": 512,
}
_LATENTS = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}

VISION_CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
"""Of what reads images, beside a text part."""

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    # every layer has a window; no two heads share K and V
    "mistral": {
        "model_type": "mistral",
        "num_key_value_heads": 4,
        "head_dim": 16,
        "sliding_window": 27,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    # the first layer sees everything
    "ministral": {
        "model_type": "ministral",
        "head_dim": 16,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 19,
    },
    "cwm": {"model_type": "cwm", "head_dim": 16, "sliding_window": 23, "mlp_bias": True},
    # the second layer has a window
    "qwen2": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    # all heads share K and V; they are wider than hidden_size / num_attention_heads
    "qwen3": {
        "model_type": "qwen3",
        "num_key_value_heads": 1,
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
    # the first layer has no experts
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
    "seed_oss": {
        "model_type": "seed_oss",
        "head_dim": 24,
        "attention_out_bias": True,
        "mlp_bias": True,
    },
    # the second layer does not rotate, and has a window
    "smollm3": {
        "model_type": "smollm3",
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 19,
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.6,
        "logits_scaling": 3.0,
    },
    "phi3": {
        "model_type": "phi3",
        "sliding_window": 33,
    },
    # half of a head's dims turn; sequences beyond 512 tokens would turn otherwise
    "phi3_long": {
        "model_type": "phi3",
        "max_position_embeddings": 2048,
        "original_max_position_embeddings": 512,
        "rope_parameters": {**_LONGROPE, "partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "gemma": {"model_type": "gemma", "head_dim": 16, "hidden_act": "gelu"},
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "sliding_window": 21,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 4.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        },
    },
    # heads of two sizes, whose KV is not of one size either; V is K in the layers without windows,
    # where half of a head's dims turn; two groups of layers with windows
    "gemma4": {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "num_hidden_layers": 5,
        "head_dim": 16,
        "global_head_dim": 24,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "sliding_window": 21,
        "layer_types": [*["sliding_attention"] * 4, "full_attention"],
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 4.0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.5,
                "rope_theta": 5000.0,
            },
        },
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [0],
    },
    "olmoe": {
        "model_type": "olmoe",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "intermediate_size": 24,
        "clip_qkv": 1.5,
    },
    "glm": {"model_type": "glm", "head_dim": 16},
    "glm4": {"model_type": "glm4", "head_dim": 16},
    "cohere": {"model_type": "cohere", "logit_scale": 0.5, "use_qk_norm": True},
    "cohere2": {
        "model_type": "cohere2",
        "logit_scale": 0.5,
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 21},
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 64, "num_key_value_heads": None},
    "gpt_neox_sequential": {
        "model_type": "gpt_neox",
        "hidden_size": 64,
        "num_key_value_heads": None,
        "hidden_act": "gelu_new",
        "use_parallel_residual": False,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "n_inner": 64,
    },
    # as V2 Lite: Q is not of low rank, the best experts of all
    "deepseek_v2": {
        "model_type": "deepseek_v2",
        **_LATENTS,
        "q_lora_rank": None,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **_LATENTS,
        "n_routed_experts": 12,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 24,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    },
    # some gates and many scores are bounded; borders of YaRN lie within a dim
    "gpt_oss": {
        "model_type": "gpt_oss",
        "hidden_size": 64,
        "head_dim": 16,
        "intermediate_size": 96,
        "sliding_window": 19,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 0.8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    # three heads: no power of two, whose slopes are another series
    "bloom": {"model_type": "bloom", "n_head": 3, "n_layer": 2, "seq_length": 512},
    "mpt": {
        "model_type": "mpt",
        "d_model": 48,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 512,
        "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.2},
    },
}

FAMILY_CONFIGS["gpt_oss_mxfp4"] = {**FAMILY_CONFIGS["gpt_oss"], "num_experts_per_tok": 2}
"""As it is published: experts in 4 bits."""

FAMILY_CONFIGS["gemma3_with_images"] = {
    "model_type": "gemma3",
    "text_config": FAMILY_CONFIGS["gemma3"],
    "vision_config": VISION_CONFIG,
    "mm_tokens_per_image": 4,
    "image_token_index": 263,
}
FAMILY_CONFIGS["mistral3_with_images"] = {
    "model_type": "mistral3",
    "text_config": FAMILY_CONFIGS["mistral"],
    "vision_config": {**VISION_CONFIG, "model_type": "pixtral", "head_dim": 8},
    "tie_word_embeddings": False,
}
_SLIDING_AND_FULL = ["sliding_attention", "sliding_attention", "full_attention"]
# As E2B: the last layers read the KV of others and are wider, all are told what the token is.
FAMILY_CONFIGS["gemma4_small"] = {
    **FAMILY_CONFIGS["gemma4"],
    "num_hidden_layers": 9,
    "num_kv_shared_layers": 3,
    "num_key_value_heads": 1,
    "attention_k_eq_v": False,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "layer_types": _SLIDING_AND_FULL * 3,
}
# As 26B A4B: experts beside a dense part.
FAMILY_CONFIGS["gemma4_moe"] = {
    **FAMILY_CONFIGS["gemma4"],
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}
FAMILY_CONFIGS["gemma4_with_images"] = {
    "model_type": "gemma4",
    "text_config": FAMILY_CONFIGS["gemma4"],
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "patch_size": 8,
    },
    "audio_config": {
        "model_type": "gemma4_audio",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "subsampling_conv_channels": [8, 4],
        "output_proj_dims": 48,
    },
}
# As 12B.
FAMILY_CONFIGS["gemma4_unified"] = {
    name: value
    for name, value in {**FAMILY_CONFIGS["gemma4"], "model_type": "gemma4_unified_text"}.items()
    if name not in ("architectures", "hidden_size_per_layer_input")
}
FAMILY_CONFIGS["gemma4_unified_with_images"] = {
    "model_type": "gemma4_unified",
    "text_config": FAMILY_CONFIGS["gemma4_unified"],
    "vision_config": {
        "model_type": "gemma4_unified_vision",
        "patch_size": 8,
        "mm_embed_dim": 32,
        "mm_posemb_size": 8,
        "output_proj_dims": 48,
    },
    "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 32},
}


def make_family_checkpoint(folder: Path, family: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a model and its tokenizer; returns the folder, made if missing.

    Args:
        folder: of the model.
        family: one of FAMILY_CONFIGS.
        seed: of the weights.
        overrides: fields of the configuration, or of its text part.
    """
    fields = {**_COMMON, **FAMILY_CONFIGS[family], **overrides}
    if text := FAMILY_CONFIGS[family].get("text_config"):
        fields = {**FAMILY_CONFIGS[family], "text_config": {**_COMMON, **text, **overrides}}
    fields = {name: fields[name] for name in fields if fields[name] is not None or name in _NULL}
    if fields["model_type"] in ("gpt2", "bloom", "mpt"):  # which have names of their own for these
        fields = {name: fields[name] for name in fields if name not in _RENAMED}
    if family == "bloom":
        fields["hidden_size"] = _COMMON["hidden_size"]
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = auto_class(config).from_config(config, dtype=torch.float32)
    draw_weights(model, seed)
    model.save_pretrained(folder)
    if family.endswith("_mxfp4"):
        pack_experts(folder)
    write_byte_tokenizer(folder)
    return folder


def draw_weights(model: torch.nn.Module, seed: int = 0) -> None:
    """Give every parameter of a model of transformers random values."""
    generator = torch.Generator().manual_seed(seed)
    saved = ("correction_bias", "layer_scalar")
    biases = [pair for pair in model.named_buffers() if pair[0].endswith(saved)]
    for name, parameter in (*model.named_parameters(), *biases):
        parameter.data.copy_(_drawn(name, parameter, generator))


_NULL = {"q_lora_rank"}
"""Fields that say something where they are null."""

_RENAMED = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
}


def _drawn(name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    if (
        "norm" in name or "ln_" in name or name.endswith("layer_scalar")
    ):  # around what it is before training
        return parameter.mean() + 0.2 * noise
    if name.endswith("router.scale"):
        return parameter + 0.2 * noise
    if name.endswith("per_expert_scale"):
        return noise.exp()
    if parameter.dim() == 1 or name.endswith("_bias"):
        return 0.3 * noise
    # Wide enough that attention is peaked and the likeliest tokens lie well apart.
    return 1.5 * noise * parameter.shape[-1] ** -0.5
