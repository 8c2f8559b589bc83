"""Every supported class, with the configuration that transformers takes for it, but small sizes.

Saved by transformers, so that what it leaves out of a file, calls otherwise or adds is read as it
means it. What a family's options do is tested elsewhere.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoder_logits import assert_close, logits_of
from support.family_checkpoints import VISION_CONFIG, draw_weights
from support.greedy_oracle import GreedyOracle, auto_class
from support.oracle import Oracle
from support.random_tokens import random_tokens
from support.tiny_checkpoints import write_byte_tokenizer
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from pagoda_engine import EngineConfig, UnsupportedModelError, load_model
from pagoda_engine.models.families.registry import FAMILIES

pytestmark = pytest.mark.slow

_NAMES = {**MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}


def _is_own(model_type: str, name: str) -> bool:
    return name.lower().startswith(model_type.replace("_", ""))


MODEL_TYPES = {name: kind for kind, name in sorted(_NAMES.items(), key=lambda item: _is_own(*item))}
"""The family's own where models of other families are of its class, too."""

OTHER_SPELLINGS = {"MPTForCausalLM": "MptForCausalLM"}
"""What transformers reads, but never writes."""

SCALED = {"CwmForCausalLM", "GptOssForCausalLM"}
"""Whose rotation is scaled by default."""

NEEDED = {"MinistralForCausalLM": {"head_dim": 24}}
"""What transformers fails without, although its configuration has no default for it."""

SIZES: dict[str, int] = {
    "vocab_size": 300,
    "vocab_size_per_layer_input": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_hidden_layers": 6,  # as many as Gemma 3 needs for a layer of each type
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
}
"""What makes a model large, as far as its configuration has it; all else is the default."""


def small_config(architecture: str, **fields: Any) -> Any:
    model_type = MODEL_TYPES[OTHER_SPELLINGS.get(architecture, architecture)]
    fields = {**NEEDED.get(architecture, {}), **fields}
    default = AutoConfig.for_model(model_type)
    if text := getattr(default, "text_config", None):
        inner = {"model_type": text.model_type, **_sizes(text), **fields}
        if default.vision_config is None:  # there is none by default
            return AutoConfig.for_model(model_type, text_config=inner)
        vision = {"model_type": default.vision_config.model_type, **VISION_CONFIG}
        return AutoConfig.for_model(model_type, text_config=inner, vision_config=vision)
    return AutoConfig.for_model(model_type, **_sizes(default), **fields, pad_token_id=0)


def _sizes(default: Any) -> dict[str, int]:
    sizes = {name: size for name, size in SIZES.items() if hasattr(default, name)}
    if hasattr(default, "kv_lora_rank"):  # heads of latents share nothing
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return sizes


def make_checkpoint(folder: Path, architecture: str, **fields: Any) -> Path:
    config = small_config(architecture, **fields)
    model = auto_class(config).from_config(config, dtype=torch.float32)
    draw_weights(model)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def assert_logits_are_close(folder: Path) -> None:
    oracle, tokens = Oracle(folder), random_tokens(24)
    found = logits_of(oracle.model.decoder, [tokens], [[20], [4]])
    assert_close(found[0], oracle.logits(tokens))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_default_configurations_are_read_as_transformers_means_them(
    tmp_path: Path, architecture: str
) -> None:
    path = make_checkpoint(tmp_path, architecture) / "config.json"
    fields = json.loads(path.read_text())
    assert fields["architectures"] == [OTHER_SPELLINGS.get(architecture, architecture)]
    path.write_text(json.dumps({**fields, "architectures": [architecture]}))
    assert_logits_are_close(tmp_path)


@pytest.mark.parametrize("architecture", sorted({*FAMILIES} - {*OTHER_SPELLINGS} - SCALED))
def test_heads_turn_in_part_in_those_families_that_transformers_turns_so(
    tmp_path: Path, architecture: str
) -> None:
    assert_logits_are_close(make_checkpoint(tmp_path, architecture, partial_rotary_factor=0.5))


@pytest.mark.parametrize("architecture", sorted(SCALED))
def test_scaled_rotations_of_a_part_are_refused_where_transformers_fails(
    tmp_path: Path, architecture: str
) -> None:
    folder = make_checkpoint(tmp_path, architecture, partial_rotary_factor=0.5)
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor of"):
        load_model(folder, EngineConfig())
    with pytest.raises(RuntimeError, match="must match the size"):
        GreedyOracle(folder).greedy([1, 2, 3], 1)
