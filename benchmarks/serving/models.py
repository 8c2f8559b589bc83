"""The models the standard set runs on: the demo, a random one of 120M parameters, a folder.

Random weights are enough for speed: a step reads the same bytes whatever they say. Their text is
noise, so outputs are never compared here.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

DEMO_FOLDER = Path(__file__).parents[2] / "demo" / "model"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def model_folder(name: str, cache: Path) -> Path:
    """Return the folder of `demo`, `small` (made in `cache` on first use) or of a path."""
    if name == "demo":
        return DEMO_FOLDER
    if name != "small":
        return Path(name)
    folder = cache / "small"
    if not (folder / "model.safetensors").is_file():
        _make_small(folder)
    return folder


def step_bytes(folder: Path) -> int:
    """Return the bytes of weights that one decode step reads: all, less an untied embedding."""
    config = json.loads((folder / "config.json").read_text())
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if config.get("tie_word_embeddings"):
        return total
    return total - 2 * int(config["vocab_size"]) * int(config["hidden_size"])


def vocab_size(folder: Path) -> int:
    """Return the model's vocabulary size."""
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def _make_small(folder: Path) -> None:
    demo = json.loads((DEMO_FOLDER / "config.json").read_text())
    config = transformers.LlamaConfig(
        vocab_size=demo["vocab_size"],
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        initializer_range=0.04,
        bos_token_id=demo["bos_token_id"],
        eos_token_id=demo["eos_token_id"],
        pad_token_id=demo["pad_token_id"],
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    torch.manual_seed(1234)
    model: Any = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        shutil.copy(DEMO_FOLDER / name, folder / name)
    model.save_pretrained(folder)
