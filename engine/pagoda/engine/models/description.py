"""A decoder as data: everything that tells one supported family from another.

Reads Hugging Face ``config.json``. Knows nothing of weights or devices.
"""

from dataclasses import dataclass
from pathlib import Path

from pagoda.engine.errors import CheckpointError, UnsupportedModelError
from pagoda.engine.models.config_reader import ConfigReader
from pagoda.engine.models.rope_scaling import RopeDescription, read_rope


@dataclass(frozen=True, slots=True)
class DecoderDescription:
    """Shapes and options of one decoder: pre-norm, RoPE, grouped-query attention, SwiGLU.

    Attributes:
        architecture: as the checkpoint names it.
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the feed-forward layer.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides num_heads.
        head_dim: width of one head; num_heads * head_dim may differ from hidden_size.
        max_position_embeddings: positions the model was made for.
        rms_norm_eps: of every norm.
        rope: see RopeDescription.
        qkv_bias: the Q, K and V projections have biases.
        output_bias: the attention's output projection has one.
        mlp_bias: the feed-forward projections have them.
        qk_norm: each head of Q and K is RMS-normed before RoPE.
        sliding_windows: for each layer the keys a query sees, itself included; None for all.
        tie_word_embeddings: the output projection is the embedding.
        dtype: of the checkpoint, by torch's name; empty if not said.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeDescription
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    dtype: str


@dataclass(frozen=True, slots=True)
class _Family:
    """What the class name of an architecture implies and its configuration does not say.

    Attributes:
        qkv_bias: None: ``attention_bias`` decides, and for the output projection too.
        has_mlp_bias: ``mlp_bias`` decides; else there is none.
        qk_norm: as in DecoderDescription.
        has_window: ``sliding_window`` means something.
        window_switch: the field that must be true besides; empty: none.
        max_window_layers: default of the field that counts the first layers, which see everything.
    """

    qkv_bias: bool | None = None
    has_mlp_bias: bool = False
    qk_norm: bool = False
    has_window: bool = False
    window_switch: str = ""
    max_window_layers: int = 0


_FAMILIES = {
    "LlamaForCausalLM": _Family(has_mlp_bias=True),
    "MistralForCausalLM": _Family(qkv_bias=False, has_window=True),
    "Qwen2ForCausalLM": _Family(
        qkv_bias=True, has_window=True, window_switch="use_sliding_window", max_window_layers=28
    ),
    "Qwen3ForCausalLM": _Family(
        qk_norm=True, has_window=True, window_switch="use_sliding_window", max_window_layers=28
    ),
}

_DEFAULT_WINDOW = 4096
_DEFAULT_QWEN3_HEAD_DIM = 128


def read_description(path: Path) -> DecoderDescription:
    """Read ``config.json``.

    Raises:
        UnsupportedModelError: an architecture or option that the decoder does not implement.
        CheckpointError: the file is missing, or a field is missing or out of range.
    """
    config = ConfigReader.open(path)
    architecture, family = _family(config)
    activation = config.string("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(path, "hidden_act", activation, ("silu",))
    if config.has("quantization_config"):
        raise UnsupportedModelError(
            path, "quantization_config", config.fields["quantization_config"], ("none",)
        )
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            path, f"{num_heads} attention heads cannot share {num_kv_heads} key-value heads"
        )
    attention_bias = family.qkv_bias is None and config.boolean("attention_bias", False)
    default_head_dim = _DEFAULT_QWEN3_HEAD_DIM if family.qk_norm else hidden_size // num_heads
    return DecoderDescription(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.integer("head_dim", default_head_dim),
        max_position_embeddings=config.integer("max_position_embeddings"),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config),
        qkv_bias=bool(family.qkv_bias) or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family.has_mlp_bias and config.boolean("mlp_bias", False),
        qk_norm=family.qk_norm,
        sliding_windows=_sliding_windows(config, family),
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        dtype=config.string("dtype", config.string("torch_dtype", "")),
    )


def _family(config: ConfigReader) -> tuple[str, _Family]:
    architectures = config.fields.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise CheckpointError(
            config.path, f"architectures is {architectures!r}, must be a list of one name"
        )
    architecture = architectures[0]
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(config.path, "architecture", architecture, tuple(_FAMILIES))
    return architecture, family


def _sliding_windows(config: ConfigReader, family: _Family) -> tuple[int | None, ...]:
    num_layers = config.integer("num_hidden_layers")
    is_null = "sliding_window" in config.fields and not config.has("sliding_window")
    is_off = bool(family.window_switch) and not config.boolean(family.window_switch, False)
    if not family.has_window or is_null or is_off:
        return (None,) * num_layers
    window = config.integer("sliding_window", _DEFAULT_WINDOW)
    layer_types = config.fields.get("layer_types")
    if layer_types is None:
        first = config.fields.get("max_window_layers", family.max_window_layers)
        return tuple(window if i >= first else None for i in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise CheckpointError(
            config.path, f"layer_types is {layer_types!r}, must name {num_layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
