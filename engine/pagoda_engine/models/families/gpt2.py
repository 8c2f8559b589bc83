"""GPT-2: learned positions, and weights stored as ``[inputs, outputs]``."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import activation, refuse, usual_description
from pagoda_engine.models.weights.names import WeightNames

_FIELDS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_NAMES = WeightNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention_in_norm="ln_1",
    feed_forward_in_norm="ln_2",
    qkv=("attn.c_attn",),
    attention_output="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    is_transposed=True,
    optional_prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
)


def gpt2(config: ConfigReader) -> DecoderDescription:
    """The feed-forward part is four times as wide unless the configuration says otherwise."""
    refuse(config, "scale_attn_weights", default=True, supported=True)
    refuse(config, "scale_attn_by_inverse_layer_idx", default=False, supported=False)
    refuse(config, "add_cross_attention", default=False, supported=False)
    config = config.renamed(_FIELDS)
    four_times = 4 * config.integer("hidden_size")
    return replace(
        usual_description(config, None, intermediate_size=four_times, is_tied=True),
        norm="layer",
        norm_bias=True,
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        is_gated=False,
        activation=activation(config, "activation_function", "gelu_new"),
        names=_NAMES,
    )
