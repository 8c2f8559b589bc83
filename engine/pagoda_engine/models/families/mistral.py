"""Mistral, and Mixtral: with experts, called differently, instead of one feed-forward part."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    SLIDING,
    experts_of,
    layer_types,
    text_config,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames


def mistral(config: ConfigReader) -> DecoderDescription:
    """All layers have the window, but for Ministral 8B, which says which; by default it is 4096."""
    usual = usual_description(config, read_rope(config))
    types = layer_types(config, usual.num_layers, (SLIDING,) * usual.num_layers)
    return replace(usual, sliding_windows=windows_of(config, types, default=4096))


def mistral3_with_images(config: ConfigReader) -> DecoderDescription:
    """Mistral Small 3.1 and 3.2: their text part is a Mistral."""
    text = mistral(text_config(config, "mistral").replaced(layer_types=None))  # never looked at
    return replace(text, names=text.names.inside_of_whole())


def mixtral(config: ConfigReader) -> DecoderDescription:
    """No window unless the configuration says so."""
    usual = usual_description(config, read_rope(config, default_theta=1e6))
    return replace(
        usual,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        sliding_windows=windows_of(config, (SLIDING,) * usual.num_layers),
        experts=experts_of(
            config,
            usual.num_layers,
            count="num_local_experts",
            size="intermediate_size",
            norm_topk_prob=True,
        ),
        names=WeightNames(
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{}.",
            expert_gate_up=("w1", "w3"),
            expert_down="w2",
        ),
    )
