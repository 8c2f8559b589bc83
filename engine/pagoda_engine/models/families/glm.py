"""GLM and GLM 4: half of a head's dims turn, in pairs that lie side by side."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import usual_description
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames


def glm(config: ConfigReader) -> DecoderDescription:
    """The biases are those of Q, K and V alone. A ``partial_rotary_factor`` of null turns all."""
    default = 1.0 if "partial_rotary_factor" in config.fields else 0.5
    rope = read_rope(config, default_rotary_factor=default, is_interleaved=True)
    return replace(
        usual_description(config, rope, head_dim=128),
        norm_eps=config.number("rms_norm_eps", 1.5625e-07),
        qkv_bias=config.boolean("attention_bias", True),
        names=WeightNames(gate_up=("mlp.gate_up_proj",)),
    )


def glm4(config: ConfigReader) -> DecoderDescription:
    """With a norm after each part, too."""
    return replace(
        glm(config),
        names=WeightNames(
            gate_up=("mlp.gate_up_proj",),
            attention_out_norm="post_self_attn_layernorm",
            feed_forward_out_norm="post_mlp_layernorm",
        ),
    )
