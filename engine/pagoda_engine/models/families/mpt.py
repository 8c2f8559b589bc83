"""MPT: ALiBi, and no biases at all."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import refuse, usual_description
from pagoda_engine.models.weights.names import WeightNames

_FIELDS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}
_NAMES = WeightNames(
    embedding="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}.",
    attention_in_norm="norm_1",
    feed_forward_in_norm="norm_2",
    qkv=("attn.Wqkv",),
    attention_output="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
    optional_prefix="transformer.",
)


def mpt(config: ConfigReader) -> DecoderDescription:
    """``attn_config`` may name a scale of the scores, a bound of Q, K and V, and ALiBi's steepness.

    The last and ``expansion_ratio`` are as the models were trained; transformers takes 8 and 4.
    """
    attention = ConfigReader(config.path, {})
    if config.has("attn_config"):
        attention = config.section("attn_config")
    refuse(config, "no_bias", default=True, supported=True)
    refuse(attention, "alibi", default=True, supported=True)
    refuse(attention, "qk_ln", default=False, supported=False)
    refuse(attention, "prefix_lm", default=False, supported=False)
    config = config.renamed(_FIELDS)
    inner = config.integer("hidden_size") * config.integer("expansion_ratio", 4)
    return replace(
        usual_description(config, None, intermediate_size=inner, is_tied=True),
        norm="layer",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        is_gated=False,
        activation="gelu",
        attention_scale=attention.optional_number("softmax_scale") or 0.0,
        qkv_clip=attention.optional_number("clip_qkv"),
        alibi_bias_max=attention.number("alibi_bias_max", 8),
        names=_NAMES,
    )
