"""Qwen 2 (biases of Q, K, V) and Qwen 3 (norms instead), dense and with experts; Seed-OSS."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    FULL,
    SLIDING,
    experts_of,
    layer_types,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope


def qwen2(config: ConfigReader) -> DecoderDescription:
    """The first ``max_window_layers`` see everything, the others a window, if it is switched on."""
    usual = usual_description(config, read_rope(config))
    windows = _windows(config, usual.num_layers)
    return replace(usual, qkv_bias=True, sliding_windows=windows)


def seed_oss(config: ConfigReader) -> DecoderDescription:
    """Qwen 2 without windows, whose biases are named one by one."""
    head_dim = 0 if "head_dim" in config.fields else 128  # null: the usual
    return replace(
        usual_description(config, read_rope(config), head_dim=head_dim),
        qkv_bias=config.boolean("attention_bias", True),
        output_bias=config.boolean("attention_out_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
    )


def qwen3(config: ConfigReader) -> DecoderDescription:
    """Windows are as Qwen 2's."""
    usual = usual_description(config, read_rope(config), head_dim=128)
    return replace(
        _with_attention_bias(config, usual),
        qk_norm="head",
        sliding_windows=_windows(config, usual.num_layers),
    )


def qwen2_moe(config: ConfigReader) -> DecoderDescription:
    """One more expert is every token's. Windows alternate where they are switched on."""
    usual = usual_description(config, read_rope(config))
    windows: tuple[int | None, ...] = (None,) * usual.num_layers
    if config.boolean("use_sliding_window", False):
        default: tuple[str, ...] = ()
        if not config.has("layer_types"):
            last = _max_window_layers(config)
            default = tuple(
                FULL if i % 2 or i >= last else SLIDING for i in range(usual.num_layers)
            )
        types = layer_types(config, usual.num_layers, default)
        windows = windows_of(config, types, default=4096)
    shared_size = config.integer("shared_expert_intermediate_size")
    return replace(
        usual,
        qkv_bias=config.boolean("qkv_bias", True),
        sliding_windows=windows,
        experts=experts_of(config, usual.num_layers, shared_size=shared_size),
    )


def qwen3_moe(config: ConfigReader) -> DecoderDescription:
    """All layers have the window, if it is switched on, whatever other fields say."""
    usual = usual_description(config, read_rope(config))
    windows: tuple[int | None, ...] = (None,) * usual.num_layers
    if config.boolean("use_sliding_window", False):
        windows = windows_of(config, (SLIDING,) * usual.num_layers, default=4096)
    return replace(
        _with_attention_bias(config, usual),
        qk_norm="head",
        sliding_windows=windows,
        experts=experts_of(config, usual.num_layers),
    )


def _with_attention_bias(config: ConfigReader, usual: DecoderDescription) -> DecoderDescription:
    has_bias = config.boolean("attention_bias", False)
    return replace(usual, qkv_bias=has_bias, output_bias=has_bias)


def _windows(config: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    if not config.boolean("use_sliding_window", False):
        return (None,) * num_layers
    default: tuple[str, ...] = ()
    if not config.has("layer_types"):
        first = _max_window_layers(config)
        default = tuple(FULL if i < first else SLIDING for i in range(num_layers))
    return windows_of(config, layer_types(config, num_layers, default), default=4096)


def _max_window_layers(config: ConfigReader) -> int:
    value = config.fields.get("max_window_layers", 28)
    if not isinstance(value, int):
        raise CheckpointError(config.path, f"max_window_layers is {value!r}, must be a number")
    return value
