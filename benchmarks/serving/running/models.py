"""The models the measurements run on: the demo, random ones of 115M to 128M parameters, a folder.

Random weights are enough for speed: a step reads the same bytes whatever they say. Their text is
noise, so outputs are never compared here.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

DEMO_FOLDER = Path(__file__).parents[3] / "demo" / "model"
SEED = 1234
VOCAB_8K = 8192
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def model_folder(name: str, cache: Path) -> Path:
    """Return the folder of `demo`, of a random model (made in `cache` at first) or of a path."""
    if name == "demo":
        return DEMO_FOLDER
    if name not in RANDOM_MODELS:
        return Path(name)
    folder = cache / name
    if not (folder / "model.safetensors").is_file():
        RANDOM_MODELS[name](folder)
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
    """Make the model of the standard set: 115M parameters, the demo's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        shutil.copy(DEMO_FOLDER / name, folder / name)
    _save(folder, transformers.LlamaForCausalLM, _llama(vocab_size(DEMO_FOLDER)))


def _make_small_8k(folder: Path) -> None:
    """Make the model of `compare.py`: 126M parameters, a vocabulary of 8,192."""
    _make_tokenizer_8k(folder)
    _save(folder, transformers.LlamaForCausalLM, _llama(VOCAB_8K))


def _make_tokenizer_8k(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = (DEMO_FOLDER.parent / "tinyshakespeare.txt").read_text(encoding="utf-8")
    demo = json.loads((DEMO_FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    specials = [token["content"] for token in demo["added_tokens"]]
    tokenizer = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    tokenizer.model = models.BPE()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_8K,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copy(DEMO_FOLDER / "tokenizer_config.json", folder / "tokenizer_config.json")


def _make_experts_8k(folder: Path) -> None:
    """Make a sparse one: 128M parameters in 8 experts, of which a token goes through two."""
    _make_tokenizer_8k(folder)
    fields = {**_shared_fields(), "num_local_experts": 8, "num_experts_per_tok": 2}
    fields |= {"hidden_size": 512, "intermediate_size": 1152, "num_hidden_layers": 8}
    fields |= {"num_attention_heads": 8}
    _save(folder, transformers.MixtralForCausalLM, transformers.MixtralConfig(**fields))


def _make_latents_8k(folder: Path) -> None:
    """Make one like DeepSeek's: 119M parameters, 30 experts and a shared one, latents."""
    _make_tokenizer_8k(folder)
    fields = {**_shared_fields(), "hidden_size": 512, "intermediate_size": 1024}
    fields |= {"num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16}
    fields |= {"n_routed_experts": 30, "num_experts_per_tok": 6, "moe_intermediate_size": 320}
    fields |= {"n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0}
    fields |= {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128}
    fields |= {"qk_rope_head_dim": 64, "v_head_dim": 128}
    _save(folder, transformers.DeepseekV2ForCausalLM, transformers.DeepseekV2Config(**fields))


def _shared_fields() -> dict[str, Any]:
    names = ("vocab_size", "max_position_embeddings", "rms_norm_eps", "initializer_range", "dtype")
    llama = _llama(VOCAB_8K).to_dict()
    ids = ("bos_token_id", "eos_token_id", "pad_token_id", "num_key_value_heads")
    return {name: llama[name] for name in (*names, *ids)}


def _llama(num_words: int) -> transformers.LlamaConfig:
    demo = json.loads((DEMO_FOLDER / "config.json").read_text())
    return transformers.LlamaConfig(
        vocab_size=num_words,
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


def _save(folder: Path, kind: Any, config: Any) -> None:
    torch.manual_seed(SEED)
    model = kind(config).to(torch.bfloat16)
    # Last, because the weights' file says that the folder is complete.
    model.save_pretrained(folder)


RANDOM_MODELS = {
    "small": _make_small,
    "small-8k": _make_small_8k,
    "experts-8k": _make_experts_8k,
    "latents-8k": _make_latents_8k,
}
