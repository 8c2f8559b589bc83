"""gpt-oss: attention sinks, windows in every other layer, experts with biases and gate bounds."""

from dataclasses import replace
from typing import Any

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    every_nth_full,
    experts_of,
    layer_types,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames
from pagoda_kernels import ClampedSwiglu

_NAMES = WeightNames(
    sinks="self_attn.sinks",
    router="mlp.router",
    expert="mlp.experts.",
    expert_gate_up=("gate_up_proj",),
    experts_layout="stacked",
)
_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def gpt_oss(config: ConfigReader) -> DecoderDescription:
    """The likeliest experts are weighted by the softmax of their scores alone.

    That is the softmax over all of them, divided by the sum of those that were chosen.
    """
    if not (config.has("rope_parameters") or config.has("rope_scaling")):
        config = ConfigReader(config.path, {**config.fields, "rope_scaling": _ROPE})
    usual = usual_description(config, read_rope(config, default_theta=1.5e5), head_dim=64)
    has_bias = config.boolean("attention_bias", True)
    experts = experts_of(
        config,
        usual.num_layers,
        count="num_local_experts",
        size="intermediate_size",
        norm_topk_prob=True,
    )
    gate = ClampedSwiglu(
        limit=config.number("swiglu_limit", 7.0), alpha=config.number("swiglu_alpha", 1.702)
    )
    types = layer_types(config, usual.num_layers, every_nth_full(usual.num_layers, 2))
    return replace(
        usual,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        qkv_bias=has_bias,
        output_bias=has_bias,
        sliding_windows=windows_of(config, types, default=128),
        experts=replace(experts, has_bias=True, gate=gate),
        names=_NAMES,
    )
