"""A tiny DeepSeek V3 as it is published: e4m3 in blocks, a layer that predicts further tokens."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.family_checkpoints import make_family_checkpoint
from support.quantised_checkpoints import fp8, quantised_pair

SIZES: dict[str, Any] = {
    # None of them a multiple of a block of 128, and some wider than one.
    "hidden_size": 192,
    "intermediate_size": 160,
    "moe_intermediate_size": 136,
    "q_lora_rank": 144,
    "v_head_dim": 40,
    "num_nextn_predict_layers": 1,
}
FURTHER = "model.layers.2."
"""Prefix of the layer after the last one."""


def make_deepseek_fp8(folder: Path) -> tuple[Path, Path]:
    """Write the model as it is published, and with what its codes stand for, dense.

    Returns:
        Both folders; the dense one is as transformers writes it.
    """
    coded, dense = quantised_pair(
        make_family_checkpoint(folder, "deepseek_v3", **SIZES), fp8((128, 128))
    )
    path = coded / "model.safetensors"
    tensors = load_file(path)
    hidden = SIZES["hidden_size"]
    first = {name: t for name, t in tensors.items() if not name.startswith("model.layers.1.")}
    second = {name: t for name, t in tensors.items() if name not in first}
    further = {name.replace("model.layers.1.", FURTHER): t.clone() for name, t in second.items()}
    for name in ("enorm", "hnorm", "shared_head.norm"):
        further[f"{FURTHER}{name}.weight"] = torch.ones(hidden)
    further[f"{FURTHER}eh_proj.weight"] = torch.ones(hidden, 2 * hidden)
    further[f"{FURTHER}embed_tokens.weight"] = first["model.embed_tokens.weight"].clone()
    further[f"{FURTHER}shared_head.head.weight"] = first["lm_head.weight"].clone()
    shards = {"00001": first, "00002": second, "00003": further}
    weight_map = {}
    for number, chosen in shards.items():
        file = f"model-{number}-of-00003.safetensors"
        save_file(chosen, coded / file, {"format": "pt"})
        weight_map |= dict.fromkeys(chosen, file)
    path.unlink()
    (coded / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    _say_as_published(coded)
    return coded, dense


def _say_as_published(folder: Path) -> None:
    """Rewrite ``config.json`` with the names that DeepSeek's own has."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {
        "rope_theta": rope.pop("rope_theta"),
        "rope_scaling": {"type": rope.pop("rope_type"), **rope},
        "moe_layer_freq": 1,
        "ep_size": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
    }
    config.pop("dtype", None)
    config["quantization_config"]["scale_fmt"] = "ue8m0"  # as V3.1 adds
    path.write_text(json.dumps(config))
