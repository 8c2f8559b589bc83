"""Tiny random models in Hugging Face layout, one for each supported family, with a tokenizer.

Needs torch and safetensors, not transformers. The same arguments always give the same bytes. Every
weight is random, biases and norms included, so that a part which the loader forgets changes the
output.
"""

import json
from pathlib import Path
from typing import Any

import torch

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "qwen3_moe", "mixtral")
VOCAB_SIZE = 264
BOS_TOKEN_ID, EOS_TOKEN_ID = 256, 257
SPECIAL_TOKENS = (
    "<|begin|>",
    "<|end|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|unused|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_BY_FAMILY: dict[str, dict[str, Any]] = {
    # grouped-query attention, 2 query heads to a KV head
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
    },
    # 3 query heads to a KV head; the first layer sees everything, the others a window
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    # multi-query attention; heads are wider than hidden_size / num_attention_heads
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    # multi-head attention; every layer sees a window that is no multiple of a block
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "sliding_window": 27,
    },
    # the first layer is dense; the others send a token to 3 of 8 experts
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
    },
    # every layer sends a token to 2 of 4 experts
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
_EXPERT_NAMES = {
    "qwen3_moe": ("mlp.gate", "mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")),
}


def make_tiny_checkpoint(
    folder: Path, family: str = "llama", *, seed: int = 0, num_shards: int = 1, **overrides: Any
) -> Path:
    """Write a model and its tokenizer; returns the folder.

    Args:
        folder: made if missing.
        family: one of FAMILIES.
        seed: of the weights.
        num_shards: more than one writes an index too.
        overrides: fields of ``config.json``; None removes one.
    """
    config = {**_COMMON, **_BY_FAMILY[family], **overrides}
    config = {name: value for name, value in config.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": [EOS_TOKEN_ID, 259]},
    )
    _save(folder, _random_weights(config, seed), num_shards)
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer without merges: the 256 bytes, then SPECIAL_TOKENS."""
    specials = {token: 256 + i for i, token in enumerate(SPECIAL_TOKENS)}
    added_tokens = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": not token.endswith("tool_call>"),
        }
        for token, token_id in specials.items()
    ]
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens,
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", **byte_level},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", **byte_level},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {char: i for i, char in enumerate(_byte_chars())},
                "merges": [],
            },
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[0],
            "eos_token": SPECIAL_TOKENS[1],
            "pad_token": SPECIAL_TOKENS[4],
            "model_max_length": _COMMON["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _byte_chars() -> list[str]:
    """Return GPT-2's printable character for each byte: printable ones stand for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    substitutes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


def _random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["torch_dtype"])
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // num_heads)
    family = config["model_type"]
    qkv_bias = family == "qwen2" or config.get("attention_bias", False)
    output_bias = family != "qwen2" and config.get("attention_bias", False)
    mlp_bias = config.get("mlp_bias", False)
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, num_rows: int, num_columns: int, has_bias: bool = False) -> None:
        # Wide enough that attention is peaked and the likeliest tokens lie well apart.
        scale = 1.5 * num_columns**-0.5
        weights[f"{name}.weight"] = scale * torch.randn(num_rows, num_columns, generator=generator)
        if has_bias:
            weights[f"{name}.bias"] = 0.3 * torch.randn(num_rows, generator=generator)

    def norm(name: str, size: int) -> None:
        weights[f"{name}.weight"] = 1 + 0.2 * torch.randn(size, generator=generator)

    def experts(prefix: str) -> None:
        router, each, (gate, up, down) = _EXPERT_NAMES[family]
        num_experts = config.get("num_experts") or config["num_local_experts"]
        width = config.get("moe_intermediate_size", inner)
        linear(f"{prefix}.{router}", num_experts, hidden)
        for expert in range(num_experts):
            linear(f"{prefix}.{each}.{expert}.{gate}", width, hidden)
            linear(f"{prefix}.{each}.{expert}.{up}", width, hidden)
            linear(f"{prefix}.{each}.{expert}.{down}", hidden, width)

    linear("model.embed_tokens", config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}"
        norm(f"{prefix}.input_layernorm", hidden)
        linear(f"{prefix}.self_attn.q_proj", num_heads * head_dim, hidden, qkv_bias)
        linear(f"{prefix}.self_attn.k_proj", num_kv_heads * head_dim, hidden, qkv_bias)
        linear(f"{prefix}.self_attn.v_proj", num_kv_heads * head_dim, hidden, qkv_bias)
        linear(f"{prefix}.self_attn.o_proj", hidden, num_heads * head_dim, output_bias)
        if family in ("qwen3", "qwen3_moe"):
            norm(f"{prefix}.self_attn.q_norm", head_dim)
            norm(f"{prefix}.self_attn.k_norm", head_dim)
        norm(f"{prefix}.post_attention_layernorm", hidden)
        if _has_experts(config, i):
            experts(prefix)
            continue
        linear(f"{prefix}.mlp.gate_proj", inner, hidden, mlp_bias)
        linear(f"{prefix}.mlp.up_proj", inner, hidden, mlp_bias)
        linear(f"{prefix}.mlp.down_proj", hidden, inner, mlp_bias)
    norm("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        linear("lm_head", config["vocab_size"], hidden)
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def _has_experts(config: dict[str, Any], layer: int) -> bool:
    if config["model_type"] not in _EXPERT_NAMES:
        return False
    every = config.get("decoder_sparse_step", 1)
    return (layer + 1) % every == 0 and layer not in config.get("mlp_only_layers", [])


def _save(folder: Path, weights: dict[str, torch.Tensor], num_shards: int) -> None:
    from safetensors.torch import save_file  # here: to know the families it is not needed

    metadata = {"format": "pt"}
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors", metadata=metadata)
        return
    names = sorted(weights)
    weight_map = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        chosen = names[shard::num_shards]
        save_file({n: weights[n] for n in chosen}, folder / file_name, metadata=metadata)
        weight_map.update(dict.fromkeys(chosen, file_name))
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
