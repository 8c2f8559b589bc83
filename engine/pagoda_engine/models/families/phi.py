"""Phi 3, 3.5 and 4: Llama with joined projections, and long or partial rotations."""

from dataclasses import replace

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.fields import SLIDING, usual_description, windows_of
from pagoda_engine.models.rope_scaling import read_rope
from pagoda_engine.models.weights.names import WeightNames


def phi3(config: ConfigReader) -> DecoderDescription:
    """Older configurations call its LongRoPE "su" or "yarn"."""
    older = {"su": "longrope", "yarn": "longrope"}
    rope = read_rope(config, default_rotary_factor=1.0, other_names=older)
    usual = usual_description(config, rope)
    return replace(
        usual,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        sliding_windows=windows_of(config, (SLIDING,) * usual.num_layers),
        names=WeightNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    )
