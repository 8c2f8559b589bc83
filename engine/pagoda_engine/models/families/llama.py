"""Llama: what every other family is described against. And Granite: Llama with four multipliers."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import usual_description
from pagoda_engine.models.rope_scaling import read_rope


def llama(config: ConfigReader) -> DecoderDescription:
    """``attention_bias`` is the output projection's too. A window, if one is named, means none."""
    attention_bias = config.boolean("attention_bias", False)
    return replace(
        usual_description(config, read_rope(config)),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )


def granite(config: ConfigReader) -> DecoderDescription:
    """``logits_scaling`` divides."""
    return replace(
        llama(config),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        logits_multiplier=1 / config.number("logits_scaling", 1.0),
    )
