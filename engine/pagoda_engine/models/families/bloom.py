"""BLOOM: ALiBi, a norm of the embeddings, and Q, K and V of a head side by side."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import refuse, usual_description
from pagoda_engine.models.weights.names import WeightNames

_FIELDS = {
    "hidden_size": "n_embed",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
}
_LENGTH = 2048  # of what BLOOM was trained on
_NAMES = WeightNames(
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv=("self_attention.query_key_value",),
    qkv_layout="by_head",
    attention_output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    optional_prefix="transformer.",
)


def bloom(config: ConfigReader) -> DecoderDescription:
    """ALiBi has no last position; the configuration says how long its prompts were, or nothing."""
    refuse(config, "apply_residual_connection_post_layernorm", default=False, supported=False)
    config = config.renamed(_FIELDS)
    if not config.has("max_position_embeddings"):
        config = config.replaced(max_position_embeddings=_LENGTH)
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
        activation="gelu_tanh",
        alibi_bias_max=8.0,
        names=_NAMES,
    )
