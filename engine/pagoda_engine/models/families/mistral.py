"""Mistral; Mixtral: experts, called differently, instead of one feed-forward part; and CWM."""

from dataclasses import replace
from typing import Any

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    FULL,
    SLIDING,
    experts_of,
    layer_types,
    text_config,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames

_CWM_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def mistral(config: ConfigReader) -> DecoderDescription:
    """All layers have the window, but for Ministral 8B, which says which; by default it is 4096."""
    usual = usual_description(config, read_rope(config))
    types = layer_types(config, usual.num_layers, (SLIDING,) * usual.num_layers)
    return replace(usual, sliding_windows=windows_of(config, types, default=4096))


def mistral3_with_images(config: ConfigReader) -> DecoderDescription:
    """Mistral Small 3.1 and 3.2: their text part is a Mistral."""
    text = mistral(text_config(config, "mistral").replaced(layer_types=None))  # never looked at
    return replace(text, names=text.names.inside_of_whole())


def cwm(config: ConfigReader) -> DecoderDescription:
    """The first of every four layers sees everything, unless the configuration says which do."""
    if not (config.has("rope_parameters") or config.has("rope_scaling")):
        config = config.replaced(rope_parameters=_CWM_ROPE)
    usual = usual_description(config, read_rope(config, default_theta=1e6), head_dim=128)
    default = tuple(SLIDING if i % 4 else FULL for i in range(usual.num_layers))
    types = layer_types(config, usual.num_layers, default)
    return replace(
        usual,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        mlp_bias=config.boolean("mlp_bias", False),
        sliding_windows=windows_of(config, types, default=8192),
    )


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
