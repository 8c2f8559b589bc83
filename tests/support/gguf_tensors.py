"""Tensors of a model in Hugging Face layout, named and laid out as llama.cpp's converter does.

What it changes (rows of Q and K, norms, experts) is worked out from what a model's own forward
makes of it. Knows no file format.
"""

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from support.mxfp4_checkpoints import unpacked

PERMUTED = ("llama", "granite", "smollm3")
_EXPERT_PARTS = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}
_USUAL = {
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "seq_length": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}


def usual_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``config.json``, those of old families by the names of Llama's."""
    found = {_USUAL.get(name, name): value for name, value in config.items()}
    found["intermediate_size"] = found.get("intermediate_size") or 4 * found["hidden_size"]
    return found


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what says how heads turn, of layers that see everything where layers differ."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    return {"rope_theta": config.get("rope_theta", 10000.0), **rope}


def tensors_of(
    folder: Path, config: dict[str, Any], name: str, has_kv_joined: bool, has_qkv_joined: bool
) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """Return a model's tensors by GGUF's names, changed as the architecture's converter does.

    Args:
        folder: of the model.
        config: with usual names.
        name: of the architecture.
        has_kv_joined: see `write_gguf`.
        has_qkv_joined: see there, too.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    if name == "gpt-oss":
        weights = _of_gpt_oss(weights)
    if name == "deepseek2":
        weights = _of_deepseek(weights, config, has_kv_joined)
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    found: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for weight, data in weights.items():
        if re.search(r"\.experts\.\d", weight):
            layer, rest = weight.split("layers.")[1].split(".", 1)
            expert, part = rest.split("experts.")[1].removesuffix(".weight").split(".")
            key = f"blk.{layer}.{_EXPERT_PARTS[part]}_exps.weight"
            experts.setdefault(key, {})[int(expert)] = data
            continue
        if weight == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        short = weight.removeprefix("transformer.") if name == "bloom" else weight
        mapped = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, f"the gguf package knows no {weight}"
        found[mapped] = _changed(weight, data, config, name)
    for key, by_expert in experts.items():
        found[key] = torch.stack([by_expert[i] for i in range(len(by_expert))])
    if has_qkv_joined:
        for layer in range(config["num_hidden_layers"]):
            for end in ("weight", "bias"):
                parts = [found.pop(f"blk.{layer}.attn_{part}.{end}") for part in "qkv"]
                found[f"blk.{layer}.attn_qkv.{end}"] = torch.cat(parts)
    found |= _rope_factors(config)
    return [(key, data.float().contiguous().numpy()) for key, data in found.items()]


def _of_gpt_oss(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gate and up apart, ``[E, outputs, inputs]``."""
    found: dict[str, torch.Tensor] = {}
    for weight, data in unpacked(weights).items():
        if weight.endswith("sinks"):
            found[f"{weight}.weight"] = data
        elif ".experts." in weight:
            stem, is_bias = weight.removesuffix("_bias"), weight.endswith("_bias")
            rows = data if is_bias else data.transpose(1, 2)
            end = "bias" if is_bias else "weight"
            if stem.endswith("gate_up_proj"):
                found[f"{stem.replace('gate_up', 'gate')}.{end}"] = rows[:, ::2]
                found[f"{stem.replace('gate_up', 'up')}.{end}"] = rows[:, 1::2]
            else:
                found[f"{stem}.{end}"] = rows
        else:
            found[weight] = data
    return found


def _of_deepseek(
    weights: dict[str, torch.Tensor], config: dict[str, Any], has_kv_joined: bool
) -> dict[str, torch.Tensor]:
    """What makes K and V of latents apart, that of K transposed."""
    found: dict[str, torch.Tensor] = {}
    for weight, data in weights.items():
        if weight.endswith("kv_b_proj.weight") and not has_kv_joined:
            by_head = data.view(config["num_attention_heads"], -1, data.shape[1])
            widths = config["qk_nope_head_dim"], config["v_head_dim"]
            k, v = by_head.split_with_sizes(widths, 1)
            found[weight.replace("kv_b_proj", "k_b_proj")] = k.transpose(1, 2)
            found[weight.replace("kv_b_proj", "v_b_proj")] = v
        else:
            found[weight.replace("e_score_correction_bias", "e_score_correction.bias")] = data
    return found


def _changed(weight: str, data: torch.Tensor, config: dict[str, Any], name: str) -> torch.Tensor:
    if name in PERMUTED and ("q_proj" in weight or "k_proj" in weight):
        is_key = "k_proj" in weight
        heads = config["num_key_value_heads" if is_key else "num_attention_heads"]
        halves = data.view(heads, 2, len(data) // heads // 2, *data.shape[1:])
        return halves.transpose(1, 2).reshape(data.shape)
    if name == "gpt2" and data.dim() == 2 and "weight" in weight and ".h." in weight:
        return data.t()
    if "query_key_value" in weight:  # one after the other, not by head
        by_head = data.view(config["num_attention_heads"], 3, -1, *data.shape[1:])
        return by_head.transpose(0, 1).reshape(data.shape)
    if name.startswith("gemma") and weight.endswith("norm.weight"):
        return data + 1
    if weight.endswith("shared_expert_gate.weight"):
        return data.squeeze()
    return data


def _rope_factors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    rope = rope_of(config)
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": torch.tensor(rope[f"{kind}_factor"])
            for kind in ("long", "short")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return {"rope_freqs.weight": 1 / ((1 - smooth) / rope["factor"] + smooth)}
