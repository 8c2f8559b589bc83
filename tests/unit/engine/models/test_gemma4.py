"""Gemma 4: what its configurations say, in the fields of every release, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoder_logits import SEQUENCES, logits_of
from support.family_checkpoints import make_family_checkpoint

from pagoda_engine import CheckpointError, EngineConfig, UnsupportedModelError, load_model
from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.registry import read_description
from pagoda_engine.models.rope_scaling import RopeDescription

FULL, SLIDING = "full_attention", "sliding_attention"
TEXT: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "num_hidden_layers": 6,
    "hidden_size_per_layer_input": 0,
}
# Of each size of the family the fields that make its KV and its layers what they are.
E2B: dict[str, Any] = {
    **TEXT,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 256,
    "layer_types": [*[SLIDING] * 4, FULL] * 7,
}
LARGE: dict[str, Any] = {
    **TEXT,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
}


def read(folder: Path, **fields: Any) -> DecoderDescription:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return read_description(path)


def test_what_a_file_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    description = read(tmp_path, architectures=["Gemma4ForCausalLM"])
    assert description.num_layers == 30
    assert [description.heads(i) for i in (4, 5)] == [LayerHeads(4, 256), LayerHeads(4, 512)]
    assert description.sliding_windows[4:6] == (512, None)
    assert description.layer_inputs is not None
    assert description.tie_word_embeddings
    assert description.scale == 1.0
    proportional = RopeDescription(theta=1e6, rope_type="proportional", rotary_factor=0.25)
    assert description.layer_ropes[4:6] == (RopeDescription(theta=1e4), proportional)
    assert proportional.rotary_dim(512) == 128


def test_layers_at_the_end_have_no_kv_of_their_own(tmp_path: Path) -> None:
    description = read(tmp_path, **E2B)
    assert description.kv_layers == tuple(range(15))
    assert description.kv_sources[15:20] == (13, 13, 13, 13, 14)
    assert description.layer_intermediate_sizes[14:16] == (6144, 12288)
    # 12 layers of one head of 256 with windows, 3 of one of 512
    assert description.kv_bytes_per_token(torch.bfloat16) == 2 * 2 * (12 * 256 + 3 * 512)
    layout = description.kv_layout(16, torch.bfloat16, max_positions=32768)
    assert layout.num_parts == 3
    assert layout.block_bytes == 16 * description.kv_bytes_per_token(torch.bfloat16)


def test_fewer_and_wider_heads_of_layers_without_windows(tmp_path: Path) -> None:
    description = read(tmp_path, **LARGE)
    assert [description.heads(i) for i in (4, 5)] == [LayerHeads(16, 256), LayerHeads(4, 512)]
    assert description.k_is_v_layers == set(range(5, 60, 6))
    layout = description.kv_layout(16, torch.bfloat16, max_positions=32768)
    assert (layout.num_parts, layout.place_bytes) == (11, 16 * 10 * 2 * 2 * 4 * 512)


def test_heads_of_each_layer_as_transformers_saves_them(tmp_path: Path) -> None:
    by_kind = read(tmp_path, **LARGE)
    own = {f"{i:02}": {"head_dim": 512, "num_key_value_heads": 4} for i in range(5, 60, 6)}
    fields = {**LARGE, "per_layer_config": own}
    del fields["num_global_key_value_heads"]
    assert read(tmp_path, **fields) == by_kind


def test_without_joint_kv_all_layers_have_as_many_heads(tmp_path: Path) -> None:
    description = read(tmp_path, **{**LARGE, "attention_k_eq_v": False})
    assert description.heads(5) == LayerHeads(16, 512)
    assert not description.k_is_v_layers


def test_the_last_layer_sees_all_tokens_whatever_the_file_says(tmp_path: Path) -> None:
    description = read(tmp_path, **TEXT, layer_types=[FULL, *[SLIDING] * 5])
    assert description.sliding_windows == (None, 512, 512, 512, 512, None)
    assert description.heads(5).head_dim == 512


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        ({"per_layer_config": {"2": {"hidden_size": 3}}}, "per_layer_config 'hidden_size'"),
        ({"per_layer_config": {"all": {"head_dim": 3}}}, "'all' is no layer's number"),
        (
            {"per_layer_config": {"2": {"num_key_value_heads": 3}}},
            "heads of layer 2 cannot share 3",
        ),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5, must leave a layer of each kind"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6, must leave a layer of each kind"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 5},
            "vocab_size_per_layer_input is 5, must be at least vocab_size 262144",
        ),
        ({"enable_moe_block": True}, "num_experts is missing"),
        (
            {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5},
            "top_k_experts is 5, must be at most the 4 experts",
        ),
        ({"rope_parameters": {SLIDING: {"rope_type": "default"}}}, "full_attention is missing"),
        ({"hidden_activation": "relu"}, "hidden_activation 'relu'"),
    ],
    ids=str,
)
def test_what_is_not_done_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        read(tmp_path, **{**TEXT, **fields})


def test_projections_that_nothing_reads_are_left_out(tmp_path: Path) -> None:
    """As files have them that were trained with K and V in every layer."""
    folder = make_family_checkpoint(tmp_path, "gemma4_small")
    path = folder / "model.safetensors"
    weights = load_file(path)
    expected = load_model(folder, EngineConfig(dtype="float32"))
    for part in ("k_proj", "v_proj"):
        weights[f"model.layers.8.self_attn.{part}.weight"] = torch.ones(24, 48)
    weights["model.layers.8.self_attn.k_norm.weight"] = torch.ones(24)
    save_file(weights, path)
    model = load_model(folder, EngineConfig(dtype="float32"))
    found, wanted = (logits_of(each.decoder, SEQUENCES[2:], [[5]])[0] for each in (model, expected))
    assert torch.equal(found, wanted)
    weights["model.layers.8.self_attn.q_bias"] = torch.ones(24)
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"no use: model\.layers\.8\.self_attn\.q_bias"):
        load_model(folder, EngineConfig(dtype="float32"))
