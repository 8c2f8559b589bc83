"""Llama: what every other family is described against."""

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
