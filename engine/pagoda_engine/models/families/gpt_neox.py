"""GPT-NeoX and Pythia: parallel parts with a norm each, and Q, K and V of a head side by side."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import activation, usual_description
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames

_FIELDS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
_NAMES = WeightNames(
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    output="embed_out",
    layer="gpt_neox.layers.{}.",
    qkv=("attention.query_key_value",),
    qkv_layout="by_head",
    attention_output="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=(".attention.bias", ".attention.masked_bias"),
)


def gpt_neox(config: ConfigReader) -> DecoderDescription:
    """A few models are sequential."""
    config = config.renamed(_FIELDS)
    has_bias = config.boolean("attention_bias", True)
    return replace(
        usual_description(config, read_rope(config, default_rotary_factor=0.25)),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_eps", 1e-5),
        is_parallel=config.boolean("use_parallel_residual", True),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=True,
        is_gated=False,
        activation=activation(config, "hidden_act", "gelu"),
        names=_NAMES,
    )
