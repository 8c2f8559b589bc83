"""What families read from their configurations, beside what the comparison of logits can tell."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.family_checkpoints import FAMILY_CONFIGS, make_family_checkpoint
from transformers.activations import ACT2FN

from pagoda_engine import CheckpointError, EngineConfig, UnsupportedModelError, load_model
from pagoda_engine.models import native_layers
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.registry import FAMILIES, read_description
from pagoda_kernels import ClampedSwiglu
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library

PAGE = Path(__file__).parents[4] / "docs" / "howto" / "model.md"
SHAPES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def read(folder: Path, architecture: str, **fields: Any) -> DecoderDescription:
    path = folder / "config.json"
    path.write_text(json.dumps({**SHAPES, "architectures": [architecture], **fields}))
    return read_description(path)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_is_on_the_page(architecture: str) -> None:
    assert f"`{architecture}`" in PAGE.read_text()


@pytest.mark.parametrize(
    ("architecture", "is_tied"),
    [
        ("LlamaForCausalLM", False),
        ("SmolLM3ForCausalLM", True),
        ("Gemma2ForCausalLM", True),
        ("CohereForCausalLM", True),
        ("Starcoder2ForCausalLM", True),
        ("GPTNeoXForCausalLM", False),
    ],
)
def test_embeddings_are_tied_where_the_field_is_absent(
    tmp_path: Path, architecture: str, is_tied: bool
) -> None:
    assert read(tmp_path, architecture).tie_word_embeddings is is_tied


LATENTS: dict[str, Any] = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
YARN = {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096}  # fmt: skip


def test_latents_of_v2_lite_as_it_is_published(tmp_path: Path) -> None:
    """Its configuration is older than transformers' own: other fields, fewer of them."""
    description = read(
        tmp_path,
        "DeepseekV2ForCausalLM",
        **LATENTS,
        q_lora_rank=None,
        rope_scaling=YARN,
        first_k_dense_replace=1,
        moe_layer_freq=1,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        scoring_func="softmax",
        routed_scaling_factor=1.0,
    )
    assert description.latent is not None
    assert description.latent.q_rank == 0
    assert description.max_position_embeddings == 160 * 1024
    assert description.scale == pytest.approx(24**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert description.rope is not None
    assert description.rope.attention_factor == 1.0
    assert description.kv_bytes_per_token(torch.bfloat16) == 4 * (32 + 8) * 2
    assert description.kv_layout(16, torch.bfloat16).name == "kv1-L4-HK1-D40-bfloat16-bs16"
    assert description.experts is not None
    assert description.experts.layers == {1, 2, 3}
    assert description.experts.shared_size == 48


@pytest.mark.parametrize("name", ["num_nextn_predict_layers", "num_mtp_layers"])
def test_layers_that_propose_tokens_are_left_out(tmp_path: Path, name: str) -> None:
    fields = {**LATENTS, **ONE_GROUP, "q_lora_rank": 24, name: 1}
    description = read(tmp_path, "DeepseekV3ForCausalLM", **fields)
    assert description.names.ignored_prefixes == ("model.layers.4.",)


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, "group_limited_greedy"),
        ("DeepseekV2ForCausalLM", {"kv_lora_rank": 24}, "a multiple of 16"),
        ("DeepseekV2ForCausalLM", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "sigmoid"),
        ("DeepseekV3ForCausalLM", {**ONE_GROUP, "attention_bias": True}, "attention_bias"),
        ("DeepseekV3ForCausalLM", {"n_group": 3}, "equal groups"),
        ("DeepseekV3ForCausalLM", {}, "n_group is 8: a group must have two experts"),
        ("DeepseekV3ForCausalLM", {"n_group": 4, "topk_group": 1}, "at most the 2 experts"),
        ("DeepseekV3ForCausalLM", {**ONE_GROUP, "qk_rope_head_dim": 7}, "cannot turn"),
    ],
)
def test_latents_and_experts_that_are_not_computed_are_refused(
    tmp_path: Path, architecture: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, architecture, **{**LATENTS, **fields})


MIXTURES = (
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "OlmoeForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts", "n_routed_experts"])
@pytest.mark.parametrize("architecture", MIXTURES)
def test_experts_are_counted_by_any_name(tmp_path: Path, architecture: str, name: str) -> None:
    """As `transformers` calls it by release: its ``attribute_map`` takes one for the other."""
    fields = {**LATENTS, **ONE_GROUP, "shared_expert_intermediate_size": 40, name: 12}
    if name != "n_routed_experts":
        del fields["n_routed_experts"]
    experts = read(tmp_path, architecture, **fields).experts
    assert experts is not None
    assert experts.num_experts == 12


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("MixtralForCausalLM", "num_local_experts"), ("Qwen3MoeForCausalLM", "num_experts")],
)
def test_experts_that_are_not_counted_are_missed_by_the_familys_name(
    tmp_path: Path, architecture: str, name: str
) -> None:
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read(tmp_path, architecture, num_experts_per_tok=2)


def test_bloom_without_a_length_is_as_long_as_it_was_trained(tmp_path: Path) -> None:
    nothing = read(tmp_path, "BloomForCausalLM", max_position_embeddings=None)
    assert nothing.max_position_embeddings == 2048
    said = read(tmp_path, "BloomForCausalLM", max_position_embeddings=None, seq_length=512)
    assert said.max_position_embeddings == 512


def test_mpt_as_its_authors_spell_it(tmp_path: Path) -> None:
    theirs = read(tmp_path, "MPTForCausalLM")
    assert replace(theirs, architecture="MptForCausalLM") == read(tmp_path, "MptForCausalLM")


SAME = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
"""What `transformers` calls each activation."""


@pytest.mark.parametrize("name", ACT2FN)
def test_activations_are_those_of_transformers_that_are_the_same_function(
    tmp_path: Path, name: str
) -> None:
    x = torch.linspace(-12, 12, 2401)
    same = {
        ours
        for ours, theirs in SAME.items()
        if (ACT2FN[name](x) - ACT2FN[theirs](x)).abs().max() < 2e-6
    }
    try:
        found = {read(tmp_path, "GPTNeoXForCausalLM", hidden_act=name).activation}
    except UnsupportedModelError:
        found = set()
    assert found == same


def test_older_gemma3_fields_mean_what_newer_ones_say(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    older = read(
        tmp_path,
        "Gemma3ForCausalLM",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling=scaling,
        sliding_window=7,
        sliding_window_pattern=2,
    )
    newer = read(
        tmp_path,
        "Gemma3ForCausalLM",
        rope_parameters={
            "full_attention": {**scaling, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    assert older == newer
    assert older.sliding_windows == (7, None, 7, None)


def test_gpt_oss_as_it_is_published(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "initial_context_length": 4096,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    scaling = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    found = read(tmp_path, "GptOssForCausalLM", rope_theta=150000, rope_scaling=scaling, **fields)
    assert found == read(tmp_path, "GptOssForCausalLM", **fields), "what transformers takes for it"
    assert found.sliding_windows == (128, None, 128, None)
    assert found.max_position_embeddings == 131072
    assert found.rope is not None
    assert (found.rope.theta, found.rope.truncate) == (150000, False)
    assert found.experts is not None
    assert (found.experts.stored, found.experts.has_bias) == ("mxfp4", True)
    assert found.experts.gate == ClampedSwiglu(limit=7.0, alpha=1.702)


@pytest.mark.parametrize(("name", "value"), [("type", "su"), ("type", "yarn")])
def test_older_names_of_phi_3s_long_rope(tmp_path: Path, name: str, value: str) -> None:
    scaling = {name: value, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    fields = {"rope_scaling": scaling, "original_max_position_embeddings": 64}
    rope = read(tmp_path, "Phi3ForCausalLM", **fields).rope
    assert rope is not None
    assert (rope.rope_type, rope.factor) == ("longrope", 4.0)
    assert rope.original_max_position_embeddings == 64


def test_whole_heads_turn_in_families_without_a_part(tmp_path: Path) -> None:
    rope = read(tmp_path, "LlamaForCausalLM", partial_rotary_factor=0.5).rope
    assert rope == read(tmp_path, "LlamaForCausalLM").rope
    assert (
        rope
        == read(
            tmp_path,
            "LlamaForCausalLM",
            rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        ).rope
    )


def test_older_gpt_neox_fields_of_the_rotation(tmp_path: Path) -> None:
    rope = read(tmp_path, "GPTNeoXForCausalLM", rotary_pct=0.5, rotary_emb_base=500.0).rope
    assert rope is not None
    assert (rope.theta, rope.rotary_factor) == (500.0, 0.5)


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0] * 8}},
            "short_factor has 1 numbers, must have 8",
        ),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "su", "short_factor": 1.0, "long_factor": [1.0] * 8}},
            "short_factor is 1.0, must be a list of numbers",
        ),
        ("LlamaForCausalLM", {"partial_rotary_factor": 1.5}, "1.5, must be at most 1"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.2}, "cannot turn: 3 is no even number"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 2, 1]}, "must have 0 or 1 for 4 layers"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, "must have 0 or 1 for 4 layers"),
        ("GPT2LMHeadModel", {"n_embd": 0, "hidden_size": None}, "n_embd is 0, must be a positive"),
        ("GPT2LMHeadModel", {"hidden_size": None}, "n_embd is missing"),
        ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling is 0, must be a positive"),
    ],
)
def test_wrong_fields_are_named(
    tmp_path: Path, architecture: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, architecture, **fields)


@pytest.mark.parametrize(
    ("architecture", "fields", "what"),
    [
        (
            "GPT2LMHeadModel",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx",
        ),
        ("GPT2LMHeadModel", {"scale_attn_weights": False}, "scale_attn_weights"),
        (
            "Gemma3ForCausalLM",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention",
        ),
        ("OlmoeForCausalLM", {"hidden_act": "gelu"}, "hidden_act of experts"),
        (
            "LlamaForCausalLM",
            {"partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
            "partial_rotary_factor of linear here",
        ),
    ],
)
def test_what_the_decoder_has_not_is_refused(
    tmp_path: Path, architecture: str, fields: dict[str, Any], what: str
) -> None:
    if architecture == "OlmoeForCausalLM":
        fields = {**fields, "num_experts": 4, "num_experts_per_tok": 2}
    with pytest.raises(UnsupportedModelError) as error:
        read(tmp_path, architecture, **fields)
    assert error.value.what == what


@pytest.mark.skipif(native_library() is None, reason="no native library on this machine")
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_every_family_is_one_native_call(tmp_path: Path, family: str) -> None:
    folder = make_family_checkpoint(tmp_path, family)
    model = load_model(folder, EngineConfig(dtype="float32"))
    assert model.decoder.is_native


@pytest.mark.skipif(native_library() is None, reason="no native library on this machine")
@pytest.mark.parametrize(
    ("family", "sizes", "dtype", "reason"),
    [
        ("glm", {}, "float16", "dtype is float16, must be bfloat16 or float32"),
        ("gpt2", {"n_embd": 45, "n_head": 5}, "float32", "5 heads of 9 dims, must be even"),
        ("gpt2", {"n_inner": 63}, "bfloat16", "the feed-forward part of layer 0: weights have"),
        (
            "deepseek_v2",
            {"qk_nope_head_dim": 15},
            "bfloat16",
            "Q, K and V of layer 0: weights have",
        ),
        (
            "deepseek_v2",
            {"num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 13},
            "bfloat16",
            "the output of layer 0: weights have an odd number of inputs",
        ),
        ("llama", {"head_dim": 9000}, "float32", "bytes of a thread, must be at most 4194304"),
    ],
    ids=["fp16", "odd-heads", "odd-inner", "odd-keys", "odd-values", "wide-heads"],
)
def test_a_cpu_without_the_native_call_says_why(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    family: str,
    sizes: dict[str, int],
    dtype: str,
    reason: str,
) -> None:
    folder = make_family_checkpoint(tmp_path, family, **sizes)
    with caplog.at_level(logging.INFO, "pagoda_engine.models.native_layers"):
        model = load_model(folder, EngineConfig(dtype=dtype))
    assert not model.decoder.is_native
    assert [reason in line for line in caplog.messages] == [True]


def test_a_cpu_without_the_native_library_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "native_library", lambda: None)
    monkeypatch.setattr(native_layers, "native_library", lambda: None)
    with caplog.at_level(logging.INFO, "pagoda_engine.models.native_layers"):
        load_model(make_family_checkpoint(tmp_path, "llama"), EngineConfig(dtype="float32"))
    assert ["there is no native library" in line for line in caplog.messages] == [True]


@pytest.mark.skipif(native_library() is None, reason="no native library on this machine")
def test_a_cpu_with_the_native_call_says_nothing_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pagoda_engine.models.native_layers"):
        load_model(make_family_checkpoint(tmp_path, "llama"), EngineConfig(dtype="float32"))
    assert caplog.messages == []


OF_A_CARD = {"type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_two_rotations_are_refused(tmp_path: Path, architecture: str) -> None:
    """As a block of a model card pasted into a file of a newer release, whose theta it drops."""
    newer = {"rope_type": "default", "rope_theta": 5e5}
    with pytest.raises(CheckpointError, match="say different things: say all of it in rope_para"):
        read(tmp_path, architecture, rope_parameters=newer, rope_scaling=OF_A_CARD)


def test_two_sections_that_say_the_same_are_one_rotation(tmp_path: Path) -> None:
    newer = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
    both = read(tmp_path, "LlamaForCausalLM", rope_parameters=newer, rope_scaling=OF_A_CARD)
    assert both.rope == read(tmp_path, "LlamaForCausalLM", rope_parameters=newer).rope


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
def test_an_older_section_is_of_the_layers_that_see_everything(
    tmp_path: Path, architecture: str
) -> None:
    sections = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 9e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    same = {"type": "linear", "factor": 8.0}
    both = read(tmp_path, architecture, rope_parameters=sections, rope_scaling=same)
    alone = read(tmp_path, architecture, rope_parameters=sections)
    assert both.layer_ropes == alone.layer_ropes


def test_layer_types_inside_of_mistral_3_are_not_looked_at(tmp_path: Path) -> None:
    """transformers takes a Mistral of its own for a Ministral, and the part of this one not."""
    text = {**SHAPES, "layer_types": ["full_attention"] * 4, "sliding_window": 16}
    description = read(tmp_path, "Mistral3ForConditionalGeneration", text_config=text)
    assert description.sliding_windows == (16,) * 4


@pytest.mark.parametrize(
    ("architecture", "norm_eps"),
    [("LlamaForCausalLM", 1e-6), ("GlmForCausalLM", 1.5625e-07), ("Glm4ForCausalLM", 1.5625e-07)],
)
def test_an_epsilon_that_is_not_there_is_the_familys(
    tmp_path: Path, architecture: str, norm_eps: float
) -> None:
    assert read(tmp_path, architecture).norm_eps == norm_eps


def test_sections_with_a_theta_each_are_read(tmp_path: Path) -> None:
    newer = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
    both = read(tmp_path, "LlamaForCausalLM", rope_parameters=newer, rope_scaling=newer)
    assert both.rope is not None
    assert both.rope.theta == 5e5


def test_sections_of_layer_types_that_are_equal_are_one(tmp_path: Path) -> None:
    sections = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 9e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    read(tmp_path, "Gemma3ForCausalLM", rope_parameters=sections, rope_scaling=sections)
