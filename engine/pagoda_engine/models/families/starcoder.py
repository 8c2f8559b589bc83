"""StarCoder 2: LayerNorms, biases, and a feed-forward part without a gate."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import (
    SLIDING,
    activation,
    usual_description,
    windows_of,
)
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames


def starcoder2(config: ConfigReader) -> DecoderDescription:
    """``use_bias`` is of all projections; norms have biases always."""
    usual = usual_description(config, read_rope(config), is_tied=True)
    has_bias = config.boolean("use_bias", True)
    return replace(
        usual,
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("norm_epsilon", 1e-5),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
        is_gated=False,
        activation=activation(config, "hidden_act", "gelu_pytorch_tanh"),
        sliding_windows=windows_of(config, (SLIDING,) * usual.num_layers),
        names=WeightNames(up="mlp.c_fc", down="mlp.c_proj"),
    )
