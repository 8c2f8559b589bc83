import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_checkpoints import FAMILIES, make_tiny_checkpoint

from pagoda_engine import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import DecoderDescription, ExpertsDescription
from pagoda_engine.models.families.registry import read_description

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def read(folder: Path, **overrides: Any) -> DecoderDescription:
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA, **overrides}))
    return read_description(path)


def test_defaults_are_those_of_the_family(tmp_path: Path) -> None:
    description = read(tmp_path)
    assert description.num_kv_heads == 4
    assert description.head_dim == 16
    assert description.norm_eps == 1e-6
    assert description.rope is not None
    assert description.rope.theta == 10000.0
    assert not description.tie_word_embeddings
    biases = (description.qkv_bias, description.output_bias, description.mlp_bias)
    assert biases == (False, False, False)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_read(tmp_path: Path, family: str) -> None:
    description = read_description(make_tiny_checkpoint(tmp_path, family) / "config.json")
    assert description.qkv_bias == (family == "qwen2")
    assert not description.output_bias
    assert description.qk_norm == ("head" if family in ("qwen3", "qwen3_moe") else "none")
    experts = {
        "qwen3_moe": ExpertsDescription(8, 3, 40, True, frozenset({1, 2})),
        "mixtral": ExpertsDescription(4, 2, 96, True, frozenset({0, 1})),
    }
    assert description.experts == experts.get(family)
    windows = {"qwen2": (None, 20, 20), "mistral": (27, 27)}
    no_windows = (None,) * description.num_layers
    assert description.sliding_windows == windows.get(family, no_windows)


def test_llama_attention_bias_covers_the_output_too(tmp_path: Path) -> None:
    description = read(tmp_path, attention_bias=True)
    assert description.qkv_bias
    assert description.output_bias


def test_llama_ignores_a_sliding_window(tmp_path: Path) -> None:
    assert read(tmp_path, sliding_window=8).sliding_windows == (None, None)


@pytest.mark.parametrize(
    ("fields", "window"),
    [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 7}, 7)],
    ids=["absent", "null", "number"],
)
def test_mistral_window(tmp_path: Path, fields: dict[str, Any], window: int | None) -> None:
    description = read(tmp_path, architectures=["MistralForCausalLM"], **fields)
    assert description.sliding_windows == (window, window)


def test_qwen_window_needs_its_switch(tmp_path: Path) -> None:
    fields = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 7, "max_window_layers": 1}
    assert read(tmp_path, **fields).sliding_windows == (None, None)
    assert read(tmp_path, use_sliding_window=True, **fields).sliding_windows == (None, 7)


def test_qwen3_head_dim_has_a_default_of_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, architectures=["Qwen3ForCausalLM"]).head_dim == 128


def qwen3_moe(folder: Path, **overrides: Any) -> DecoderDescription:
    fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return read(folder, architectures=["Qwen3MoeForCausalLM"], **{**fields, **overrides})


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"decoder_sparse_step": 2}, {1, 3}),
        ({"mlp_only_layers": [0, 3]}, {1, 2, 4}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {1}),
        ({"mlp_only_layers": None}, {0, 1, 2, 3, 4}),
    ],
)
def test_layers_with_experts(tmp_path: Path, fields: dict[str, Any], layers: set[int]) -> None:
    experts = qwen3_moe(tmp_path, num_hidden_layers=5, **fields).experts
    assert experts is not None
    assert experts.layers == layers


def test_qwen3_moe_defaults(tmp_path: Path) -> None:
    description = qwen3_moe(tmp_path)
    assert description.head_dim == 16
    assert description.experts is not None
    assert not description.experts.norm_topk_prob


def test_qwen3_moe_has_one_window_for_all_layers(tmp_path: Path) -> None:
    fields = {"sliding_window": 7, "max_window_layers": 1}
    assert qwen3_moe(tmp_path, **fields).sliding_windows == (None, None)
    switched_on = qwen3_moe(tmp_path, use_sliding_window=True, **fields)
    assert switched_on.sliding_windows == (7, 7)


def test_mixtral_has_no_window_unless_it_says_so(tmp_path: Path) -> None:
    fields = {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    assert read(tmp_path, **fields).sliding_windows == (None, None)
    assert read(tmp_path, sliding_window=7, **fields).sliding_windows == (7, 7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts": None}, "num_experts is missing"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size is 0, must be a positive integer"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, must be at most the 8 experts"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3, must be layer indices"),
        ({"mlp_only_layers": ["0"]}, "must be layer indices"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1, must be true or false"),
    ],
)
def test_wrong_expert_fields_are_named(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        qwen3_moe(tmp_path, **fields)


def test_older_rope_fields(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    rope = read(tmp_path, rope_theta=500.0, rope_scaling=scaling).rope
    assert (rope.theta, rope.rope_type, rope.factor) == (500.0, "linear", 2.0)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0}, 1024),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}, 256),
        ({"rope_type": "linear", "factor": 3.0, "original_max_position_embeddings": 256}, 768),
        ({"rope_type": "linear", "factor": 3.0}, 256),
    ],
)
def test_scaled_rope_reaches_the_length_that_it_extends_to(
    tmp_path: Path, scaling: dict[str, Any], length: int
) -> None:
    assert read(tmp_path, rope_scaling=scaling).max_position_embeddings == length


def test_mixtral_has_its_own_default_theta(tmp_path: Path) -> None:
    fields = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
    assert read(tmp_path, num_experts_per_tok=2, **fields).rope.theta == 1_000_000.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_theta": float("inf")}, "rope_theta is inf, must be a positive number"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, must be a positive integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, must be at most 4096"),
        ({"max_position_embeddings": 2**30}, "must be at most 16777216"),
        ({"torch_dtype": "float3"}, "torch_dtype is 'float3'"),
    ],
)
def test_absurd_values_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, **fields)


def test_unknown_architecture_names_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        read(tmp_path, architectures=["MambaForCausalLM"])
    assert error.value.value == "MambaForCausalLM"
    assert "LlamaForCausalLM" in error.value.supported
    assert "'MambaForCausalLM' is not supported; supported: LlamaForCausalLM" in str(error.value)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "axial", "factor": 2.0}}, "rope_type"),
    ],
)
def test_unsupported_options_are_refused(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        read(tmp_path, **fields)
    assert error.value.what == what


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": 0}, "vocab_size is 0, must be a positive integer"),
        ({"hidden_size": "64"}, "hidden_size is '64', must be a positive integer"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, must be a positive number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, must be true or false"),
        ({"hidden_act": 3}, "hidden_act is 3, must be a string"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"architectures": None}, "must be a list of one name"),
        ({"architectures": [{}]}, "must be a list of one name"),
        ({"rope_scaling": 3}, "rope_scaling is 3, must be an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        read(tmp_path, **fields)
    assert error.value.path == tmp_path / "config.json"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["full_attention"]}, "must name 2 layers"),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            "layer type 'linear_attention' is not supported",
        ),
        ({"layer_types": [[], "full_attention"]}, r"layer type \[\] is not supported"),
        ({"max_window_layers": "1"}, "max_window_layers is '1', must be a number"),
    ],
)
def test_windows_that_cannot_be_read_are_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    switch = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, **switch, **fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_description(path)
