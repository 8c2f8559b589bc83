"""Tiny random adapters as PEFT writes them, for the tiny checkpoints. Needs no PEFT."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK = 4
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")


def make_tiny_adapter(
    folder: Path,
    model_folder: Path,
    *,
    seed: int,
    modules: tuple[str, ...] = MODULES,
    rank: int = RANK,
    **config: Any,
) -> Path:
    """Write an adapter of a tiny checkpoint; strong enough that it changes greedy tokens.

    Args:
        folder: of the adapter; made.
        model_folder: of the base model.
        seed: of its weights.
        modules: that are adapted, in every layer.
        rank: of all of them.
        config: further fields of adapter_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    base = load_file(model_folder / "model.safetensors")
    tensors = {}
    for name, weight in base.items():
        if not name.removesuffix(".weight").endswith(modules):
            continue
        num_rows, num_columns = weight.shape
        own = f"base_model.model.{name.removesuffix('.weight')}"
        a = torch.randn(rank, num_columns, generator=generator) / num_columns**0.5
        b = torch.randn(num_rows, rank, generator=generator) * float(weight.std()) * 2
        tensors |= {f"{own}.lora_A.weight": a, f"{own}.lora_B.weight": b}
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "bias": "none",
        "init_lora_weights": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields | config))
    return folder
