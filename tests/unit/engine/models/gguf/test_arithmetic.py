"""Keys that change what is computed are followed, or refused by their names."""

import inspect
import json
from pathlib import Path

import pytest
from gguf.constants import Keys
from support.family_checkpoints import make_family_checkpoint
from support.gguf_files import write_gguf
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.gguf.arithmetic import NEUTRAL
from pagoda_engine.models.gguf.config import FIELDS_BY_KEY
from pagoda_engine.models.gguf.model import GgufModel

FOLLOWED_BY_ALL = {
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.value_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "leading_dense_block_count",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}
OF_NO_ARITHMETIC = {
    "vocab_size",
    "tensor_data_layout",
    "pooling_type",
    "rope.scaling.finetuned",  # but for Granite
}
OF_OTHER_MODELS = (
    *("ssm.", "kda.", "wkv.", "posnet.", "convnext.", "classifier.", "shortconv.", "{dense}"),
    *("time_", "embedding_length_out", "features_length", "decoder_block_count", "expert_chunk"),
    *("interleave_moe", "moe_every", "attention.decay_lora", "attention.iclr_lora"),
    *("attention.value_residual", "attention.gate_lora"),
)
"""Beginnings of keys whose layers have tensors that no decoder here would take."""


def file_of(family: str, place: Path, **metadata: object) -> Path:
    folder = make_family_checkpoint(place / "folder", family)
    return write_gguf(folder, place / "model.gguf", **metadata)


def test_every_key_of_the_format_is_accounted_for() -> None:
    groups = [group for group in vars(Keys).values() if inspect.isclass(group)]
    keys = {key for group in groups for key in vars(group).values() if "{arch}." in str(key)}
    names = {key.removeprefix("{arch}.") for key in keys}
    known = {*NEUTRAL, *FIELDS_BY_KEY.values(), *FOLLOWED_BY_ALL, *OF_NO_ARITHMETIC}
    assert {name for name in names - known if not name.startswith(OF_OTHER_MODELS)} == set()


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", "use_parallel_residual", True),
        ("gpt2", "attention.max_alibi_bias", 8.0),
        ("bloom", "attention.max_alibi_bias", 4.0),
        ("bloom", "attention.clamp_kqv", 1.0),
        ("gpt_neox", "logit_scale", 0.5),
        ("olmo2", "attention.clamp_kqv", 8.0),
        ("olmoe", "expert_gating_func", 2),
        ("olmoe", "expert_weights_scale", 2.5),
        ("olmoe", "attention.sliding_window", 64),
        ("glm4", "nextn_predict_layers", 1),
        ("glm4", "rope.freq_base_swa", 500.0),
        ("glm", "attention.value_length", 8),
        ("cohere2", "final_logit_softcapping", 30.0),
        ("cohere2", "attention.temperature_scale", 0.1),
        ("granite", "rope.scaling.finetuned", False),
        ("granite", "rope.scaling.attn_factor", 1.2),
        ("starcoder2", "attention.sliding_window_pattern", 2),
        ("phi3_long", "rope.scaling.factor", 4.0),
        ("deepseek_v2", "attention.temperature_scale", 0.1),
        ("gpt_oss", "rope.scaling.yarn_attn_factor", 2.0),
    ],
)
def test_what_is_not_followed_is_refused(
    family: str, key: str, value: object, tmp_path: Path
) -> None:
    path = file_of(family, tmp_path, **{key.replace(".", "__"): value})
    with pytest.raises(UnsupportedModelError, match=rf"\.{key} ") as raised:
        GgufModel(path)
    assert repr(value)[:3] in str(raised.value)


def test_values_that_change_nothing_are_taken(tmp_path: Path) -> None:
    same = {"logit_scale": 1.0, "attention__causal": True, "expert_count": 0}
    plain = GgufModel(file_of("gpt2", tmp_path / "plain")).description
    assert GgufModel(file_of("gpt2", tmp_path / "same", **same)).description == plain


def test_how_steep_alibi_is_and_how_far_heads_reach_are_mpts_own(tmp_path: Path) -> None:
    said = {"attention__max_alibi_bias": 4.0, "attention__clamp_kqv": 0.5}
    path = tmp_path / "model.gguf"
    write_gguf(make_family_checkpoint(tmp_path / "folder", "mpt"), path, **said)
    found = GgufModel(path).description
    assert (found.alibi_bias_max, found.qkv_clip) == (4.0, 0.5)


def test_without_alibi_mpt_is_refused(tmp_path: Path) -> None:
    folder = make_family_checkpoint(tmp_path / "folder", "mpt")
    config = json.loads((folder / "config.json").read_text())
    config["attn_config"]["alibi_bias_max"] = 0.0
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"mpt\.attention\.max_alibi_bias 0\.0 is not"):
        GgufModel(write_gguf(folder, tmp_path / "model.gguf"))


def test_a_magnitude_of_olmo_3_that_does_not_follow_from_the_factor_is_refused(
    tmp_path: Path,
) -> None:
    path = file_of("olmo3", tmp_path, rope__scaling__attn_factor=1.5)
    with pytest.raises(UnsupportedModelError, match=r"olmo2\.rope\.scaling\.attn_factor 1\.5"):
        GgufModel(path)


def test_more_turning_dims_than_a_head_has_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "folder", "qwen2")
    path = write_gguf(folder, tmp_path / "model.gguf", attention__key_length=4)
    with pytest.raises(CheckpointError, match=r"qwen2\.rope\.dimension_count is \d+, must be at"):
        GgufModel(path)


def test_heads_turn_in_part_in_every_family(tmp_path: Path) -> None:
    """As llama.cpp does it; a field of ``config.json`` says it to some families alone."""
    folder = make_tiny_checkpoint(tmp_path / "folder", "qwen2")
    path = write_gguf(folder, tmp_path / "model.gguf", rope__dimension_count=4)
    description = GgufModel(path).description
    assert description.rope is not None
    assert description.rope.rotary_dim(description.head_dim) == 4 < description.head_dim


@pytest.mark.parametrize(
    ("pattern", "full"),
    [(4, [3, 7]), (2, [1, 3, 5, 7]), (1, list(range(8)))],
)
def test_a_number_says_which_layers_have_no_window(
    pattern: int, full: list[int], tmp_path: Path
) -> None:
    folder = make_family_checkpoint(
        tmp_path / "folder",
        "cohere2",
        num_hidden_layers=8,
        layer_types=["full_attention"] * 8,
    )
    said = {"attention__sliding_window_pattern": pattern}
    windows = GgufModel(write_gguf(folder, tmp_path / "model.gguf", **said)).description
    assert [i for i, window in enumerate(windows.sliding_windows) if window is None] == full
