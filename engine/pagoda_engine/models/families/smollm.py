"""SmolLM 3: Llama without rotation in some layers."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    FULL,
    SLIDING,
    layer_types,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope


def smollm3(config: ConfigReader) -> DecoderDescription:
    """Layers without rotation are those that may have a window."""
    rope = read_rope(config, default_theta=2e6)
    usual = usual_description(config, rope, is_tied=True)
    turns = _turning(config, usual.num_layers)
    windows: tuple[int | None, ...] = (None,) * usual.num_layers
    if config.boolean("use_sliding_window", False):
        default = tuple(FULL if does_turn else SLIDING for does_turn in turns)
        windows = windows_of(config, layer_types(config, usual.num_layers, default))
    attention_bias = config.boolean("attention_bias", False)
    return replace(
        usual,
        layer_ropes=tuple(rope if does_turn else None for does_turn in turns),
        sliding_windows=windows,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )


def _turning(config: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Tell for each layer whether it rotates; ``no_rope_layers`` has a 1 for those that do."""
    if not config.has("no_rope_layers"):
        every = config.integer("no_rope_layer_interval", 4)
        return tuple((i + 1) % every != 0 for i in range(num_layers))
    flags = config.fields["no_rope_layers"]
    if (
        not isinstance(flags, list)
        or len(flags) < num_layers
        or any(f not in (0, 1) for f in flags)
    ):
        raise CheckpointError(
            config.path, f"no_rope_layers is {flags!r}, must have 0 or 1 for {num_layers} layers"
        )
    return tuple(bool(flag) for flag in flags[:num_layers])
