"""Which families are supported, and how their Hugging Face ``config.json`` is read.

Knows names and defaults of fields. Knows nothing of weights or devices.
"""

from dataclasses import dataclass
from pathlib import Path

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import DecoderDescription, ExpertsDescription
from pagoda_engine.models.rope_scaling import read_rope

# What no model reaches by far: above it a file is broken, and would take memory before it fails.
MAX_LAYERS = 4096
MAX_POSITIONS = 2**24

DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class _Family:
    """What the class name of an architecture implies and its configuration does not say.

    Attributes:
        qkv_bias: None: ``attention_bias`` decides, and for the output projection too.
        has_mlp_bias: ``mlp_bias`` decides; else there is none.
        qk_norm: as in DecoderDescription.
        head_dim: where the field is absent; 0: hidden_size shared out among the heads.
        has_window: ``sliding_window`` means something.
        default_window: where the field is absent; None: no window.
        window_switch: the field that must be true besides; empty: none.
        max_window_layers: default of the field that counts the first layers, which see everything;
            None: all layers have the same window, whatever the fields say.
        num_experts: the field that counts the experts of a layer; empty: there are none.
        expert_size: the field with an expert's width.
        norm_topk_prob: None: the field of that name decides.
        rope_theta: where the field is absent.
    """

    qkv_bias: bool | None = None
    has_mlp_bias: bool = False
    qk_norm: bool = False
    head_dim: int = 0
    has_window: bool = False
    default_window: int | None = 4096
    window_switch: str = ""
    max_window_layers: int | None = 0
    num_experts: str = ""
    expert_size: str = ""
    norm_topk_prob: bool | None = None
    rope_theta: float = 10000.0


_FAMILIES = {
    "LlamaForCausalLM": _Family(has_mlp_bias=True),
    "MistralForCausalLM": _Family(qkv_bias=False, has_window=True),
    "Qwen2ForCausalLM": _Family(
        qkv_bias=True, has_window=True, window_switch="use_sliding_window", max_window_layers=28
    ),
    "Qwen3ForCausalLM": _Family(
        qk_norm=True,
        head_dim=128,
        has_window=True,
        window_switch="use_sliding_window",
        max_window_layers=28,
    ),
    "Qwen3MoeForCausalLM": _Family(
        qk_norm=True,
        has_window=True,
        window_switch="use_sliding_window",
        max_window_layers=None,
        num_experts="num_experts",
        expert_size="moe_intermediate_size",
    ),
    "MixtralForCausalLM": _Family(
        qkv_bias=False,
        has_window=True,
        default_window=None,
        max_window_layers=None,
        num_experts="num_local_experts",
        expert_size="intermediate_size",
        norm_topk_prob=True,
        rope_theta=1_000_000.0,
    ),
}


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
    rope = read_rope(config, default_theta=family.rope_theta)
    attention_bias = family.qkv_bias is None and config.boolean("attention_bias", False)
    return DecoderDescription(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.bounded("num_hidden_layers", MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.integer("head_dim", family.head_dim or hidden_size // num_heads),
        max_position_embeddings=max(
            config.bounded("max_position_embeddings", MAX_POSITIONS), rope.extended_length
        ),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        qkv_bias=bool(family.qkv_bias) or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family.has_mlp_bias and config.boolean("mlp_bias", False),
        qk_norm=family.qk_norm,
        sliding_windows=_sliding_windows(config, family),
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        dtype=_dtype(config),
        experts=_experts(config, family),
    )


def _dtype(config: ConfigReader) -> str:
    name = "dtype" if config.has("dtype") else "torch_dtype"
    dtype = config.string(name, "")
    if dtype and dtype not in DTYPES:
        raise CheckpointError(
            config.path, f"{name} is {dtype!r}, must be one of {', '.join(DTYPES)}"
        )
    return dtype


def _family(config: ConfigReader) -> tuple[str, _Family]:
    match architectures := config.fields.get("architectures"):
        case [str() as architecture]:
            pass
        case _:
            raise CheckpointError(
                config.path, f"architectures is {architectures!r}, must be a list of one name"
            )
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(config.path, "architecture", architecture, tuple(_FAMILIES))
    return architecture, family


def _sliding_windows(config: ConfigReader, family: _Family) -> tuple[int | None, ...]:
    num_layers = config.integer("num_hidden_layers")
    is_off = bool(family.window_switch) and not config.boolean(family.window_switch, False)
    has_none = config.fields.get("sliding_window", family.default_window) is None
    if not family.has_window or is_off or has_none:
        return (None,) * num_layers
    window = config.integer("sliding_window", family.default_window)
    if family.max_window_layers is None:
        return (window,) * num_layers
    layer_types = config.fields.get("layer_types")
    if layer_types is None:
        first = config.fields.get("max_window_layers", family.max_window_layers)
        if not isinstance(first, int):
            raise CheckpointError(config.path, f"max_window_layers is {first!r}, must be a number")
        return tuple(window if i >= first else None for i in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise CheckpointError(
            config.path, f"layer_types is {layer_types!r}, must name {num_layers} layers"
        )
    windows = {"sliding_attention": window, "full_attention": None}
    for kind in layer_types:
        if kind not in tuple(windows):
            raise UnsupportedModelError(config.path, "layer type", kind, tuple(windows))
    return tuple(windows[kind] for kind in layer_types)


def _experts(config: ConfigReader, family: _Family) -> ExpertsDescription | None:
    if not family.num_experts:
        return None
    num_layers = config.integer("num_hidden_layers")
    num_experts = config.integer(family.num_experts)
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
    norm_topk_prob = family.norm_topk_prob
    if norm_topk_prob is None:
        norm_topk_prob = config.boolean("norm_topk_prob", False)
    return ExpertsDescription(
        num_experts=num_experts,
        num_experts_per_tok=num_experts_per_tok,
        intermediate_size=config.integer(family.expert_size),
        norm_topk_prob=norm_topk_prob,
        layers=frozenset(i for i in range(num_layers) if (i + 1) % every == 0 and i not in dense),
    )
