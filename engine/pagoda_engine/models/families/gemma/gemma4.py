"""Gemma 4 (text): heads of layers with windows and of others differ in number and width.

Its layers without windows turn a part of a head, and may have K's projection make V.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import (
    DecoderDescription,
    ExpertsDescription,
    LayerInputsDescription,
)
from pagoda_engine.models.families.fields import (
    FULL,
    MAX_LAYERS,
    SLIDING,
    activation,
    check_rope,
    every_nth_full,
    layer_types,
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
    layer_scalar="layer_scalar",
    router="router.proj",
    router_norm="router.scale",
    expert_scales="router.per_expert_scale",
    experts_in_norm="pre_feedforward_layernorm_2",
    experts_out_norm="post_feedforward_layernorm_2",
    dense_out_norm="post_feedforward_layernorm_1",
    expert="experts.",
    expert_gate_up=("gate_up_proj",),
    experts_layout="stacked_rows",
)
_SENSES = (
    *("model.embed_vision.", "model.vision_embedder."),
    *("model.audio_tower.", "model.embed_audio."),
)
# What configurations leave out, as it is transformers' own.
_TEXT: Mapping[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
}
_UNIFIED: Mapping[str, Any] = {
    **_TEXT,
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
_ROPE: Mapping[str, Any] = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_GLOBAL_HEAD_DIM = 512
_OF_A_LAYER = ("head_dim", "num_key_value_heads")


def gemma4(config: ConfigReader) -> DecoderDescription:
    """E2B and E4B, 26B A4B, and 31B."""
    return _gemma4(config, _TEXT)


def gemma4_with_images(config: ConfigReader) -> DecoderDescription:
    """The text part of a model that reads images and sounds, too."""
    return _inside_of_whole(gemma4(text_config(config, "gemma4_text", _TEXT)))


def gemma4_unified(config: ConfigReader) -> DecoderDescription:
    """12B, which has neither experts nor inputs by token."""
    return _gemma4(config, _UNIFIED)


def gemma4_unified_with_images(config: ConfigReader) -> DecoderDescription:
    """The text part of such a model, which reads images and sounds without towers for them."""
    return _inside_of_whole(gemma4_unified(text_config(config, "gemma4_unified_text", _UNIFIED)))


def _inside_of_whole(text: DecoderDescription) -> DecoderDescription:
    names = text.names.inside_of_whole()
    return replace(text, names=replace(names, vision_prefixes=(*names.vision_prefixes, *_SENSES)))


def _gemma4(config: ConfigReader, defaults: Mapping[str, Any]) -> DecoderDescription:
    """Scores are not scaled: norms of Q and K have learned what they should be."""
    config = config.replaced(**{**defaults, **config.fields})
    if config.fields.get("use_bidirectional_attention") == "all":
        known = ("null", "vision")
        raise UnsupportedModelError(config.path, "use_bidirectional_attention", "all", known)
    num_layers = config.bounded("num_hidden_layers", MAX_LAYERS)
    types = list(layer_types(config, num_layers, every_nth_full(num_layers, 6)))
    types[-1] = FULL  # whatever the file says, as transformers has it
    ropes = {kind: _rope(config, kind) for kind in (SLIDING, FULL)}
    usual = usual_description(config, ropes[FULL], is_tied=True)
    heads = _heads(config, types, usual.num_heads)
    for each, kind in zip(heads, types, strict=True):
        check_rope(config, ropes[kind], each.head_dim)
    has_bias = config.boolean("attention_bias", False)
    k_is_v = config.boolean("attention_k_eq_v", False)
    sources = _kv_sources(config, types)
    has_kv = [not sources or sources[i] == i for i in range(num_layers)]
    inner = usual.intermediate_size
    is_double = config.boolean("use_double_wide_mlp", False)
    return replace(
        usual,
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        qkv_bias=has_bias,
        output_bias=has_bias,
        names=replace(_NAMES, ignored=_without_use(has_kv)),
        qk_norm="head",
        is_v_normed=True,
        attention_scale=1.0,
        sliding_windows=windows_of(config, tuple(types)),
        layer_heads=heads,
        layer_ropes=tuple(ropes[kind] for kind in types),
        k_is_v_layers=frozenset(i for i, kind in enumerate(types) if k_is_v and kind == FULL),
        kv_sources=sources,
        layer_inputs=_layer_inputs(config),
        layer_intermediate_sizes=tuple(inner * (1 + (is_double and not own)) for own in has_kv),
        experts=_experts(config, num_layers),
        embedding_multiplier=math.sqrt(usual.hidden_size),
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
    )


def _kv_sources(config: ConfigReader, types: list[str]) -> tuple[int, ...]:
    """Return whose KV each layer reads: the last ones read that of the last one of their kind.

    That is the last one of those before them, which all have their own.
    """
    num_shared = config.fields.get("num_kv_shared_layers") or 0
    if not num_shared:
        return ()
    num_own = len(types) - config.integer("num_kv_shared_layers")
    if num_own < 1 or set(types[:num_own]) != set(types):
        raise CheckpointError(
            config.path,
            f"num_kv_shared_layers is {num_shared}, must leave a layer of each kind before those "
            f"of the {len(types)}",
        )
    last = {kind: i for i, kind in enumerate(types[:num_own])}
    return (*range(num_own), *(last[kind] for kind in types[num_own:]))


def _layer_inputs(config: ConfigReader) -> LayerInputsDescription | None:
    if not config.fields.get("hidden_size_per_layer_input"):
        return None
    count, needed = (config.integer(name) for name in ("vocab_size_per_layer_input", "vocab_size"))
    if count < needed:
        raise CheckpointError(
            config.path,
            f"vocab_size_per_layer_input is {count}, must be at least vocab_size {needed}",
        )
    return LayerInputsDescription(count, config.integer("hidden_size_per_layer_input"))


def _experts(config: ConfigReader, num_layers: int) -> ExpertsDescription | None:
    if not config.boolean("enable_moe_block", False):
        return None
    count, chosen = config.integer("num_experts"), config.integer("top_k_experts")
    if chosen > count:
        raise CheckpointError(
            config.path, f"top_k_experts is {chosen}, must be at most the {count} experts"
        )
    gate = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    if gate == "gelu":
        known = ("gelu_pytorch_tanh", "silu")
        raise UnsupportedModelError(config.path, "hidden_activation of experts", gate, known)
    return ExpertsDescription(
        num_experts=count,
        num_experts_per_tok=chosen,
        intermediate_size=config.integer("moe_intermediate_size"),
        norm_topk_prob=True,
        layers=frozenset(range(num_layers)),
        gate=gate,
        is_beside_dense=True,
    )


def _without_use(has_kv: Sequence[bool]) -> tuple[str, ...]:
    """Return what files have of layers that make no K and V, and transformers leaves out, too."""
    parts = ("k_proj", "v_proj", "k_norm")
    return tuple(
        f"model.layers.{i}.self_attn.{part}.weight"
        for i, own in enumerate(has_kv)
        if not own
        for part in parts
    )


def _rope(config: ConfigReader, kind: str) -> RopeDescription:
    """Return the rotation of layers of a kind; only a proportional one is of a part of a head."""
    sections = config.section("rope_parameters").fields if config.has("rope_parameters") else _ROPE
    section = ConfigReader(config.path, sections).section(kind)
    alone = config.replaced(rope_parameters=section.fields, partial_rotary_factor=None)
    is_part = section.string("rope_type", "default") == "proportional"
    return read_rope(alone, default_rotary_factor=1.0 if is_part else None)


def _heads(config: ConfigReader, types: list[str], num_heads: int) -> tuple[LayerHeads, ...]:
    """Return the KV heads of each layer, as releases of transformers and others have written them.

    Those that are not as the others have fields of their own; or each layer does, by its index.
    """
    usual = {name: config.integer(name) for name in _OF_A_LAYER}
    full = {"head_dim": config.integer("global_head_dim", _GLOBAL_HEAD_DIM)}
    if config.boolean("attention_k_eq_v", False) and config.has("num_global_key_value_heads"):
        full["num_key_value_heads"] = config.integer("num_global_key_value_heads")
    heads = []
    own = _own_sizes(config.section("per_layer_config")) if config.has("per_layer_config") else None
    for i, kind in enumerate(types):
        sizes = {**usual, **(full if kind == FULL else {})}
        if own is not None:
            sizes = {**usual, **own.get(i, {})}
        if num_heads % sizes["num_key_value_heads"]:
            raise CheckpointError(
                config.path,
                f"{num_heads} attention heads of layer {i} cannot share "
                f"{sizes['num_key_value_heads']} key-value heads",
            )
        heads.append(LayerHeads(sizes["num_key_value_heads"], sizes["head_dim"]))
    return tuple(heads)


def _own_sizes(layers: ConfigReader) -> dict[int, dict[str, int]]:
    """Return what each layer has of its own; their numbers are all as long: "05" of 60 layers."""
    sizes = {}
    for number in layers.fields:
        if not number.isdecimal():
            raise CheckpointError(layers.path, f"per_layer_config {number!r} is no layer's number")
        own = layers.section(number)
        for name in own.fields:
            if name not in _OF_A_LAYER:
                raise UnsupportedModelError(layers.path, "per_layer_config", name, _OF_A_LAYER)
        sizes[int(number)] = {name: own.integer(name) for name in _OF_A_LAYER if own.has(name)}
    return sizes
