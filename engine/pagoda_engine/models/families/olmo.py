"""OLMo 2, whose norms follow each part, and OLMoE, with experts; both norm Q and K as a whole."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import experts_of, usual_description
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weight_names import WeightNames


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
        usual_description(config, read_rope(config)),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm="joined",
    )
