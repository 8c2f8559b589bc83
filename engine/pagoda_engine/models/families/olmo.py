"""OLMo 2 and 3, whose norms follow each part, and OLMoE, with experts; Q and K are normed whole."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    FULL,
    SLIDING,
    check_rope,
    every_nth_full,
    experts_of,
    layer_types,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import RopeDescription, read_rope
from pagoda_engine.models.weights.names import WeightNames


def olmo2(config: ConfigReader) -> DecoderDescription:
    """No part has a norm before it."""
    return replace(
        _olmo(config),
        names=WeightNames(
            attention_in_norm="",
            attention_out_norm="post_attention_layernorm",
            feed_forward_in_norm="",
            feed_forward_out_norm="post_feedforward_layernorm",
        ),
    )


def olmo3(config: ConfigReader) -> DecoderDescription:
    """Three of four layers have a window, and a rotation that is not scaled."""
    rope = read_rope(config, default_theta=5e5, layer_type=FULL)
    if config.has("rope_parameters"):
        local = read_rope(config, default_theta=5e5, layer_type=SLIDING)
    else:
        local = RopeDescription(theta=config.number("rope_theta", 5e5))
    usual = olmo2(config)
    types = layer_types(config, usual.num_layers, every_nth_full(usual.num_layers, 4))
    check_rope(config, local, usual.head_dim)
    return replace(
        usual,
        sliding_windows=windows_of(config, types, default=4096),
        layer_ropes=tuple(local if kind == SLIDING else rope for kind in types),
    )


def olmoe(config: ConfigReader) -> DecoderDescription:
    """Q, K and V may have a bound."""
    usual = _olmo(config)
    return replace(
        usual,
        qkv_clip=config.optional_number("clip_qkv"),
        experts=experts_of(config, usual.num_layers, size="intermediate_size"),
    )


def _olmo(config: ConfigReader) -> DecoderDescription:
    has_bias = config.boolean("attention_bias", False)
    return replace(
        usual_description(config, read_rope(config, layer_type=FULL)),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm="joined",
    )
