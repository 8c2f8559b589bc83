"""GGUF files of models in Hugging Face layout, as llama.cpp's converter writes them.

Names, byte layout and quantisation are the `gguf` package's. Which keys an architecture's converter
writes is done here; what it changes of tensors in `gguf_tensors`.
"""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.gguf_tensors import rope_of, tensors_of, usual_names

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "Starcoder2ForCausalLM": "starcoder2",
    "CohereForCausalLM": "command-r",
    "GraniteForCausalLM": "granite",
    "SmolLM3ForCausalLM": "smollm3",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "GptOssForCausalLM": "gpt-oss",
    "Cohere2ForCausalLM": "cohere2",
    "GlmForCausalLM": "chatglm",
    "Glm4ForCausalLM": "glm4",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2",
    "OlmoeForCausalLM": "olmoe",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gptneox",
    "BloomForCausalLM": "bloom",
    "MptForCausalLM": "mpt",
}
_DO_NOT_TURN = ("gpt2", "bloom", "mpt")
_CONTROL, _USER_DEFINED = 3, 4


def write_gguf(
    folder: Path,
    path: Path,
    kind: str = "F32",
    *,
    dequantised: bool = False,
    has_kv_joined: bool = False,
    has_qkv_joined: bool = False,
    **metadata: Any,
) -> Path:
    """Write the model of a folder as one file; returns its path.

    Args:
        folder: in Hugging Face layout.
        path: of the file; its folder is made if missing.
        kind: type of its matrices, where their rows are long enough for it; the others are F32.
        dequantised: write what those stand for, as F32.
        has_kv_joined: latents as converters before 2025 wrote them.
        has_qkv_joined: Q, K and V, and their biases, in one tensor.
        metadata: further keys, after the architecture's name and a dot.
    """
    config = usual_names(json.loads((folder / "config.json").read_text()))
    name = ARCHITECTURES[config["architectures"][0]]
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, name)
    _add_config(writer, config, name)
    if name == "deepseek2":
        _add_latents(writer, config, has_kv_joined)
    for key, value in metadata.items():
        _add(writer, f"{name}.{key.replace('__', '.')}", value)
    _add_tokenizer(writer, folder)
    for tensor, data in tensors_of(folder, config, name, has_kv_joined, has_qkv_joined):
        is_mxfp4 = "quantization_config" in config and tensor.endswith("_exps.weight")
        _add_tensor(writer, tensor, data, "MXFP4" if is_mxfp4 else kind, dequantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, str(value))


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any], name: str) -> None:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = rope_of(config)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    if "num_key_value_heads" in config:
        writer.add_head_count_kv(1 if name == "deepseek2" else config["num_key_value_heads"])
    if name not in _DO_NOT_TURN:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if name not in (*_DO_NOT_TURN, "gptneox"):
        writer.add_rope_freq_base(float(rope["rope_theta"]))
    if name == "gpt-oss" or (head_dim != hidden // heads and name != "deepseek2"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    for field in ("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"):
        if field in config:
            writer.add_layer_norm_eps(config[field])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if rope.get("rope_type", "default") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "longrope":
        scale = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
        factor = math.sqrt(1 + math.log(scale) / math.log(rope["original_max_position_embeddings"]))
        writer.add_rope_scaling_attn_factors(factor)
    for field, add in (
        ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
        ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
    ):
        if field in rope:
            add(rope[field])
    if original := rope.get("original_max_position_embeddings"):
        writer.add_rope_scaling_orig_ctx_len(original)
    if name == "gpt-oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if name in ("phi3", "gemma2", "gemma3", "gpt-oss", "cohere2"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if name == "olmo2" and "layer_types" in config:
        writer.add_sliding_window(config["sliding_window"])
        flags = [kind == "sliding_attention" for kind in config["layer_types"]]
        writer.add_array("olmo2.attention.sliding_window_pattern", flags)
    if name == "gptneox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if name == "mpt":
        attention = config["attn_config"]
        writer.add_max_alibi_bias(attention["alibi_bias_max"])
        if attention["clip_qkv"] is not None:
            writer.add_clamp_kqv(attention["clip_qkv"])
    local = config.get("rope_parameters", {}).get("sliding_attention")
    if local and name == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", local["rope_theta"])
    if count := config.get("num_experts") or config.get("num_local_experts"):
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    for field, add in (
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("logit_scale", writer.add_logit_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("attention_multiplier", writer.add_attention_scale),
    ):
        if config.get(field):
            add(config[field])


def _add_latents(writer: gguf.GGUFWriter, config: dict[str, Any], has_kv_joined: bool) -> None:
    """As one head of what is cached, beside the widths of the heads that are made of it."""
    rank, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + turning, config["v_head_dim"]
    writer.add_kv_lora_rank(rank)
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    if has_kv_joined:
        writer.add_key_length(key)
        writer.add_value_length(value)
    else:
        writer.add_key_length(rank + turning)
        writer.add_value_length(rank)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config.get("norm_topk_prob"):
        writer.add_expert_weights_norm(True)
    if config.get("n_group"):
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    is_v3 = config["architectures"] == ["DeepseekV3ForCausalLM"]
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if is_v3 else kinds.SOFTMAX)
    if scale := rope_of(config).get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * scale)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    ids = dict(tokenizer["model"]["vocab"])
    ids |= {token["content"]: i for i, token in added.items()}
    kinds = {
        i: _CONTROL if i in added and added[i]["special"] else _USER_DEFINED if i in added else 1
        for i in ids.values()
    }
    texts = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([kinds[ids[text]] for text in texts])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    for field, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        if token := config.get(f"{field}_token"):
            add(ids[token])
    writer.add_add_bos_token(tokenizer["post_processor"] is not None)
    if template := config.get("chat_template"):
        writer.add_chat_template(template)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    data: np.ndarray[Any, Any],
    kind: str,
    dequantised: bool,
) -> None:
    qtype = gguf.GGMLQuantizationType[kind]
    num_elements, num_bytes = gguf.GGML_QUANT_SIZES[qtype]
    if kind == "F32" or data.ndim < 2 or data.shape[-1] % num_elements:
        writer.add_tensor(name, data.astype(np.float32))
        return
    if kind.endswith("_K"):
        stored = _random_blocks(name, (*data.shape[:-1], data.shape[-1] // num_elements), num_bytes)
    else:
        stored = gguf.quants.quantize(data, qtype)
    if dequantised:
        writer.add_tensor(name, gguf.quants.dequantize(stored, qtype).astype(np.float32))
    else:
        writer.add_tensor(name, stored, raw_dtype=qtype)


def _random_blocks(
    name: str, shape: tuple[int, ...], num_bytes: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Any bytes are a block, but for its scales: small numbers, of which weights become usual ones.

    The package cannot quantise to these types.
    """
    generator = np.random.default_rng([*name.encode()])
    blocks = generator.integers(0, 256, (*shape, num_bytes), dtype=np.uint8)
    if num_bytes == 210:  # Q6_K
        scales = {208: np.full(shape, 3e-5)}
    else:  # the minima are such that the weights' mean is zero
        drawn = generator.uniform(1e-4, 3e-4, shape)
        scales = {0: drawn, 2: drawn * (7.5 if num_bytes == 144 else 15.5)}
    for first, values in scales.items():
        blocks[..., first : first + 2] = values.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
