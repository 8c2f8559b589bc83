"""Folders that people have edited: what their fields and files mean to transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoder_logits import SEQUENCES, assert_close, logits_of
from support.family_checkpoints import make_family_checkpoint
from support.oracle import Oracle

pytestmark = pytest.mark.slow

GROUPS = {"n_routed_experts": 32, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default"},
}


def edit(folder: Path, fields: dict[str, Any]) -> None:
    """Set fields of a configuration; None leaves one out."""
    path = folder / "config.json"
    edited = {**json.loads(path.read_text()), **fields}
    left_out = {name for name, value in fields.items() if value is None}
    path.write_text(json.dumps({name: edited[name] for name in edited if name not in left_out}))


def assert_logits_are_transformers(folder: Path) -> None:
    oracle = Oracle(folder)
    found = logits_of(oracle.model.decoder, SEQUENCES[:1], [[40], [30]])
    assert_close(found[0], oracle.logits(SEQUENCES[0]))


@pytest.mark.parametrize(
    ("family", "made_of", "edits"),
    [
        ("deepseek_v3", GROUPS, {"routed_scaling_factor": None}),
        ("deepseek_v3", GROUPS, {"n_group": None, "topk_group": None}),
        ("deepseek_v3", {}, {"rope_parameters": {**YARN, "rope_type": "default", "rope_theta": 1e4,
                                                 "mscale": 1.0, "mscale_all_dim": 1.0}}),
        ("deepseek_v2", {}, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4,
                                                 "factor": 4.0, "mscale_all_dim": 1.0}}),
        # Ministral 8B is a Mistral of which some layers see everything
        ("mistral", {"num_hidden_layers": 2, "sliding_window": 13},
         {"layer_types": ["sliding_attention", "full_attention"]}),
        ("cwm", {}, {"rope_parameters": None, "layer_types": None, "rms_norm_eps": None}),
        ("seed_oss", {"attention_out_bias": False, "mlp_bias": False},
         {"attention_bias": None, "attention_out_bias": None, "mlp_bias": None}),
        ("gemma", {}, {"hidden_act": "silu"}),
        ("gemma", {}, {"hidden_act": "gelu"}),
        ("mixtral", {}, {"rms_norm_eps": None}),
        ("gemma3", {}, {"rope_parameters": NESTED, "rope_theta": 77.0,
                        "rope_local_base_freq": 300.0}),
        ("llama", {}, {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": YARN,
                       "original_max_position_embeddings": 16}),
    ],
    ids=str,
)  # fmt: skip
def test_fields_mean_what_they_mean_to_transformers(
    tmp_path: Path, family: str, made_of: dict[str, Any], edits: dict[str, Any]
) -> None:
    folder = make_family_checkpoint(tmp_path, family, **made_of)
    edit(folder, edits)
    assert_logits_are_transformers(folder)


@pytest.mark.parametrize(
    ("family", "made_of", "fields"),
    [
        ("seed_oss", {"head_dim": 12}, {"head_dim": None}),
        ("deepseek_v3", {}, {"norm_topk_prob": None}),
        ("deepseek_v3", {}, {"rope_interleave": None}),
        ("gpt_oss", {}, {"rope_parameters": {**YARN, "rope_theta": 1e4, "truncate": None}}),
        ("llama", {}, {"rope_parameters": {**YARN, "rope_theta": 1e4, "truncate": None}}),
        ("glm4", {}, {"rope_parameters": None, "rope_theta": 1e4, "partial_rotary_factor": None}),
    ],
    ids=str,
)
def test_null_means_what_it_means_to_transformers(
    tmp_path: Path, family: str, made_of: dict[str, Any], fields: dict[str, Any]
) -> None:
    path = make_family_checkpoint(tmp_path, family, **made_of) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    assert_logits_are_transformers(tmp_path)


@pytest.mark.parametrize("says", [True, None], ids=["said", "by-default"])
@pytest.mark.parametrize("family", ["gemma", "cohere", "gpt2", "starcoder2"])
def test_an_output_projection_that_is_not_the_embedding_is_used(
    tmp_path: Path, family: str, says: bool | None
) -> None:
    """As a fine-tune that trained it is merged, and the configuration stays as it was."""
    folder = make_family_checkpoint(tmp_path, family)
    edit(folder, {"tie_word_embeddings": says})
    path = folder / "model.safetensors"
    weights = load_file(path)
    (name,) = (n for n in weights if n.endswith(("embed_tokens.weight", "wte.weight")))
    torch.manual_seed(7)
    other = weights[name] + torch.randn_like(weights[name])
    save_file({**weights, "lm_head.weight": other}, path, metadata={"format": "pt"})
    assert_logits_are_transformers(folder)
