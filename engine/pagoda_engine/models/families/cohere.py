"""Command R and R7B (Cohere, Cohere 2): both parts of a layer read the same norm."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    every_nth_full,
    layer_types,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames


def cohere(config: ConfigReader) -> DecoderDescription:
    """Its norms of Q and K have a weight for every head."""
    has_norm = config.boolean("use_qk_norm", False)
    return replace(_cohere(config, default_theta=5e5), qk_norm="each_head" if has_norm else "none")


def cohere2(config: ConfigReader) -> DecoderDescription:
    """Three of four layers have a window; those without one do not rotate."""
    usual = _cohere(config, default_theta=1e4)
    every = config.integer("sliding_window_pattern", 4)
    types = layer_types(config, usual.num_layers, every_nth_full(usual.num_layers, every))
    windows = windows_of(config, types, default=4096)
    return replace(
        usual,
        sliding_windows=windows,
        layer_ropes=tuple(None if window is None else usual.rope for window in windows),
    )


def _cohere(config: ConfigReader, default_theta: float) -> DecoderDescription:
    rope = read_rope(config, default_theta=default_theta, is_interleaved=True)
    has_bias = config.boolean("attention_bias", False)
    return replace(
        usual_description(config, rope, is_tied=True),
        norm="layer",
        norm_eps=config.number("layer_norm_eps", 1e-5),
        is_parallel=True,
        qkv_bias=has_bias,
        output_bias=has_bias,
        logits_multiplier=config.number("logit_scale", 0.0625),
        names=WeightNames(feed_forward_in_norm=""),
    )
