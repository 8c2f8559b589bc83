"""Gemma 1, 2 and 3 (text): scaled embeddings; from 2 on windows, and norms around each part."""

import math
from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    FULL,
    MAX_LAYERS,
    SLIDING,
    activation,
    check_rope,
    every_nth_full,
    layer_types,
    refuse,
    text_config,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import RopeDescription, read_rope
from pagoda_engine.models.weights.names import WeightNames

_NAMES = WeightNames(
    attention_out_norm="post_attention_layernorm",
    feed_forward_in_norm="pre_feedforward_layernorm",
    feed_forward_out_norm="post_feedforward_layernorm",
)
# What published configurations of the whole leave out, as it is transformers' own.
_GEMMA3_TEXT = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}


def gemma(config: ConfigReader) -> DecoderDescription:
    """Its "gelu" is the approximation, as transformers takes it."""
    usual = _gemma(config, read_rope(config), (FULL,) * _num_layers(config))
    if config.string("hidden_act", "gelu") == "gelu":
        return usual
    return replace(usual, activation=activation(config, "hidden_act", ""))


def gemma2(config: ConfigReader) -> DecoderDescription:
    """Every other layer has a window; scores and logits have soft caps."""
    usual = _gemma(config, read_rope(config), _types(config, 2))
    return replace(
        usual,
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        attention_scale=_scale(config),
        names=_NAMES,
        attention_soft_cap=config.optional_number("attn_logit_softcapping", 50.0),
        logits_soft_cap=config.optional_number("final_logit_softcapping", 30.0),
    )


def gemma3(config: ConfigReader) -> DecoderDescription:
    """Layers with a window have a rotation of their own; Q and K are normed."""
    rope = read_rope(config, default_theta=1e6, layer_type="full_attention")
    theta = config.number("rope_local_base_freq", 10000.0)
    if config.has("rope_parameters"):
        local = read_rope(config.replaced(rope_theta=theta), layer_type=SLIDING)
    else:
        local = RopeDescription(theta=theta)
    types = _types(config, config.integer("sliding_window_pattern", 6))
    usual = _gemma(config, rope, types)
    check_rope(config, local, usual.head_dim)
    return replace(
        usual,
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        attention_scale=_scale(config),
        names=_NAMES,
        qk_norm="head",
        layer_ropes=tuple(local if kind == SLIDING else rope for kind in types),
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
    )


def gemma3_with_images(config: ConfigReader) -> DecoderDescription:
    """Gemma 3 of 4B and more: its text part is a Gemma 3 as the small ones are."""
    text = gemma3(text_config(config, "gemma3_text", _GEMMA3_TEXT))
    return replace(text, names=text.names.inside_of_whole())


def _num_layers(config: ConfigReader) -> int:
    return config.bounded("num_hidden_layers", MAX_LAYERS)


def _scale(config: ConfigReader) -> float:
    return 1 / math.sqrt(config.number("query_pre_attn_scalar", 256))


def _types(config: ConfigReader, full_every: int) -> tuple[str, ...]:
    num_layers = _num_layers(config)
    return layer_types(config, num_layers, every_nth_full(num_layers, full_every))


def _gemma(
    config: ConfigReader, rope: RopeDescription, types: tuple[str, ...]
) -> DecoderDescription:
    refuse(config, "use_bidirectional_attention", default=False, supported=False)
    usual = usual_description(config, rope, head_dim=256, is_tied=True)
    has_bias = config.boolean("attention_bias", False)
    return replace(
        usual,
        norm="rms_unit_offset",
        activation="gelu_tanh",
        qkv_bias=has_bias,
        output_bias=has_bias,
        sliding_windows=windows_of(config, types, default=4096),
        embedding_multiplier=math.sqrt(usual.hidden_size),
    )
