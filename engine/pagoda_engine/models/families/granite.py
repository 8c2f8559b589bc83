"""Granite: Llama with four multipliers."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.llama import llama


def granite(config: ConfigReader) -> DecoderDescription:
    """``logits_scaling`` divides."""
    return replace(
        llama(config),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        logits_multiplier=1 / config.number("logits_scaling", 1.0),
    )
