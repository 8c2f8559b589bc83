"""Fields that many families share: read, checked, and put together as most of them do.

Knows names of fields. Knows nothing of a single family.
"""

from collections.abc import Mapping
from typing import Any

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import Activation, DecoderDescription, ExpertsDescription
from pagoda_engine.models.rope_scaling import RopeDescription

# What no model reaches by far: above it a file is broken, and would take memory before it fails.
MAX_LAYERS = 4096
MAX_POSITIONS = 2**24

DTYPES = ("bfloat16", "float16", "float32", "float64")
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
FULL, SLIDING = "full_attention", "sliding_attention"
# Releases of transformers save the same count of one family under different ones of these.
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
# What a model of text and images says of both.
_OF_THE_WHOLE = ("architectures", "dtype", "torch_dtype")


def usual_description(
    config: ConfigReader,
    rope: RopeDescription | None,
    *,
    head_dim: int = 0,
    intermediate_size: int = 0,
    is_tied: bool = False,
) -> DecoderDescription:
    """Read what Llama's configuration and most others have; `dataclasses.replace` does the rest.

    There are no biases and no windows.

    Args:
        config: of the model.
        rope: its rotation; None: it has none.
        head_dim: where the field is absent; 0: hidden_size shared out among the heads.
        intermediate_size: where the field is absent; 0: it must be there.
        is_tied: whether the embedding is tied where the field is absent.

    Raises:
        CheckpointError: a field is missing or out of range.
        UnsupportedModelError: an activation that the decoder has not.
    """
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            config.path, f"{num_heads} attention heads cannot share {num_kv_heads} key-value heads"
        )
    num_layers = config.bounded("num_hidden_layers", MAX_LAYERS)
    head_dim = config.integer("head_dim", head_dim or hidden_size // num_heads)
    length = config.bounded("max_position_embeddings", MAX_POSITIONS)
    if rope is not None:
        check_rope(config, rope, head_dim)
        length = max(length, rope.extended_length)
    inner = "intermediate_size"
    has_default = intermediate_size and not config.has(inner)
    return DecoderDescription(
        architecture=config.fields["architectures"][0],
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size if has_default else config.integer(inner),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=length,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm="none",
        sliding_windows=(None,) * num_layers,
        tie_word_embeddings=config.boolean("tie_word_embeddings", is_tied),
        dtype=_dtype(config),
        activation=activation(config, "hidden_act", "silu"),
    )


def text_config(
    config: ConfigReader, model_type: str, defaults: Mapping[str, Any] | None = None
) -> ConfigReader:
    """Return the configuration of the text part, with what the whole model says of both.

    That its embedding is tied is said of the whole, and is so where nothing is said; a folder that
    has an output projection all the same has it for use (`HuggingFaceFolder`).

    Args:
        config: of the whole model.
        model_type: of the text part.
        defaults: what transformers takes for fields that ``text_config`` leaves out.

    Raises:
        CheckpointError: there is no ``text_config``.
        UnsupportedModelError: it is of another model.
    """
    text = config.section("text_config")
    found = text.string("model_type", model_type)
    if found != model_type:
        raise UnsupportedModelError(config.path, "text_config.model_type", found, (model_type,))
    whole = {name: config.fields[name] for name in _OF_THE_WHOLE if config.has(name)}
    whole["tie_word_embeddings"] = config.boolean("tie_word_embeddings", True)
    return ConfigReader(config.path, {**(defaults or {}), **text.fields, **whole})


def activation(config: ConfigReader, name: str, default: str) -> Activation:
    """Return the activation that a field names.

    Raises:
        UnsupportedModelError: the decoder has not that one.
    """
    value = config.string(name, default)
    if value not in _ACTIVATIONS:
        raise UnsupportedModelError(config.path, name, value, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[value]


def refuse(config: ConfigReader, name: str, *, default: bool, supported: bool) -> None:
    """Raise UnsupportedModelError if a switch is not where the decoder needs it."""
    if config.boolean(name, default) is not supported:
        known = (str(supported).lower(),)
        raise UnsupportedModelError(config.path, name, not supported, known)


def check_rope(config: ConfigReader, rope: RopeDescription, head_dim: int) -> None:
    """Raise CheckpointError for a rotation that does not fit a head."""
    dim = rope.rotary_dim(head_dim)
    if dim % 2 or dim < (4 if rope.rope_type == "dynamic" else 2):
        raise CheckpointError(
            config.path,
            f"{rope.rotary_factor:g} of a head of {head_dim} dims cannot turn: {dim} is no even "
            "number of them",
        )
    for name, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
        if rope.rope_type == "longrope" and len(factors) != dim // 2:
            raise CheckpointError(
                config.path, f"{name} has {len(factors)} numbers, must have {dim // 2}"
            )


def layer_types(config: ConfigReader, num_layers: int, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``full_attention`` or ``sliding_attention`` for each layer.

    Args:
        config: of the model.
        num_layers: how many there are.
        default: where the field is absent.

    Raises:
        UnsupportedModelError: another type.
        CheckpointError: the field names too few or too many.
    """
    if not config.has("layer_types"):
        return default
    types = config.fields["layer_types"]
    if not isinstance(types, list) or len(types) != num_layers:
        raise CheckpointError(
            config.path, f"layer_types is {types!r}, must name {num_layers} layers"
        )
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise UnsupportedModelError(config.path, "layer type", kind, (SLIDING, FULL))
    return tuple(types)


def windows_of(
    config: ConfigReader, types: tuple[str, ...], default: int | None = None
) -> tuple[int | None, ...]:
    """Return the window of each layer; the sliding ones have ``sliding_window``.

    Args:
        config: of the model.
        types: of the layers.
        default: where the field is absent (not where it is null); None: no window.
    """
    if config.fields.get("sliding_window", default) is None:
        return (None,) * len(types)
    window = config.integer("sliding_window", default)
    return tuple(window if kind == SLIDING else None for kind in types)


def every_nth_full(num_layers: int, every: int) -> tuple[str, ...]:
    """Return types of layers of which every n-th sees everything, the others a window."""
    return tuple(SLIDING if (i + 1) % every else FULL for i in range(num_layers))


def experts_of(
    config: ConfigReader,
    num_layers: int,
    *,
    count: str = "num_experts",
    size: str = "moe_intermediate_size",
    norm_topk_prob: bool | None = None,
    shared_size: int = 0,
) -> ExpertsDescription:
    """Read a mixture of experts.

    Args:
        config: of the model.
        num_layers: of which all have experts but those that fields name.
        count: field that counts the experts of a layer; where it is absent, what else transformers
            calls it.
        size: field with an expert's width.
        norm_topk_prob: None: the field of that name decides.
        shared_size: as in ExpertsDescription.

    Raises:
        CheckpointError: a field is missing or out of range.
    """
    if activation(config, "hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            config.path, "hidden_act of experts", config.fields["hidden_act"], ("silu",)
        )
    named = next((name for name in (count, *_EXPERT_COUNTS) if config.has(name)), count)
    num_experts = config.integer(named)
    num_experts_per_tok = config.integer("num_experts_per_tok")
    if num_experts_per_tok > num_experts:
        raise CheckpointError(
            config.path,
            f"num_experts_per_tok is {num_experts_per_tok}, must be at most the {num_experts} "
            "experts",
        )
    every = config.integer("decoder_sparse_step", 1)
    dense = config.fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(i, int) for i in dense):
        raise CheckpointError(config.path, f"mlp_only_layers is {dense!r}, must be layer indices")
    if norm_topk_prob is None:
        norm_topk_prob = config.boolean("norm_topk_prob", False)
    return ExpertsDescription(
        num_experts=num_experts,
        num_experts_per_tok=num_experts_per_tok,
        intermediate_size=config.integer(size),
        norm_topk_prob=norm_topk_prob,
        layers=frozenset(i for i in range(num_layers) if (i + 1) % every == 0 and i not in dense),
        shared_size=shared_size,
    )


def _dtype(config: ConfigReader) -> str:
    name = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.string(name, "")
    if dtype and dtype not in DTYPES:
        raise CheckpointError(
            config.path, f"{name} is {dtype!r}, must be one of {', '.join(DTYPES)}"
        )
    return dtype
