"""Rotation frequencies of RoPE and its long-context variants.

Knows positions and frequencies. Knows nothing of queries or keys. Names and formulas follow the
``rope_type`` values of Hugging Face configurations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class RopeDescription:
    """Which rotation a model uses.

    Attributes:
        theta: base of the wavelengths.
        rope_type: ``default``, ``linear``, ``llama3`` or ``yarn``.
        factor: how much longer the context became.
        original_max_position_embeddings: context before that; 0 where the type does not need it.
        low_freq_factor: llama3; wavelengths above original / this are scaled fully.
        high_freq_factor: llama3; wavelengths below original / this stay.
        beta_fast: yarn; dimensions with more rotations than this stay.
        beta_slow: yarn; dimensions with fewer are scaled fully.
        truncate: yarn; round the two borders outwards to whole dimensions.
        attention_factor: yarn; multiplies cosines and sines.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    @property
    def extended_length(self) -> int:
        """Positions that scaling reaches; 0 where the configuration says them itself."""
        if self.rope_type not in ("linear", "yarn"):
            return 0
        return int(self.original_max_position_embeddings * self.factor)


def read_rope(config: ConfigReader, *, default_theta: float = 10000.0) -> RopeDescription:
    """Read the rotation from a model's configuration, of either generation.

    ``rope_parameters`` holds everything; before it existed there were ``rope_theta`` and
    ``rope_scaling``.

    Raises:
        UnsupportedModelError: another ``rope_type``, or a partial rotation.
        CheckpointError: a parameter is missing or out of range.
    """
    name = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    empty = ConfigReader(config.path, {})
    section = config.section(name) if config.has(name) else empty
    owner = section if section.has("rope_theta") else config
    theta = owner.number("rope_theta", default_theta)
    # Configurations before 2024 call it "type".
    rope_type = section.string("rope_type", section.string("type", "default"))
    if rope_type not in _FREQUENCIES:
        raise UnsupportedModelError(config.path, "rope_type", rope_type, tuple(_FREQUENCIES))
    for owner in (section, config):
        if owner.number("partial_rotary_factor", 1.0) != 1.0:
            value = owner.fields["partial_rotary_factor"]
            raise UnsupportedModelError(config.path, "partial_rotary_factor", value, ("1.0",))
    if rope_type == "default":
        return RopeDescription(theta=theta)
    factor = section.number("factor")
    if rope_type == "linear":
        # Without it nobody says whether max_position_embeddings counts before or after scaling.
        name = "original_max_position_embeddings"
        original = section.integer(name) if section.has(name) else 0
        return RopeDescription(theta, rope_type, factor, original)
    original = _original_length(config, section)
    if rope_type == "llama3":
        return RopeDescription(
            theta=theta,
            rope_type=rope_type,
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
        )
    return RopeDescription(
        theta=theta,
        rope_type=rope_type,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.boolean("truncate", True),
        attention_factor=_yarn_attention_factor(section, factor),
    )


def _original_length(config: ConfigReader, section: ConfigReader) -> int:
    name = "original_max_position_embeddings"
    if section.has(name) or config.has(name):
        return (section if section.has(name) else config).integer(name)
    return config.integer("max_position_embeddings")


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    if section.has("attention_factor"):
        return section.number("attention_factor")

    def magnitude(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if section.fields.get("mscale") and section.fields.get("mscale_all_dim"):
        return magnitude(section.number("mscale")) / magnitude(section.number("mscale_all_dim"))
    return magnitude(1.0)


def cos_sin_table(rope: RopeDescription, head_dim: int, max_positions: int) -> torch.Tensor:
    """Return ``[max_positions, head_dim]`` float32 cpu: all cosines, then all sines."""
    frequencies = _FREQUENCIES[rope.rope_type](rope, head_dim)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies[None]
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * rope.attention_factor


def _plain(rope: RopeDescription, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / (rope.theta**exponents)


def _linear(rope: RopeDescription, head_dim: int) -> torch.Tensor:
    return _plain(rope, head_dim) / rope.factor


def _llama3(rope: RopeDescription, head_dim: int) -> torch.Tensor:
    frequencies = _plain(rope, head_dim)
    wavelengths = 2 * math.pi / frequencies
    original = rope.original_max_position_embeddings
    smooth = (original / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    mixed = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    is_long = wavelengths > original / rope.low_freq_factor
    is_short = wavelengths < original / rope.high_freq_factor
    scaled = torch.where(is_long, frequencies / rope.factor, mixed)
    return torch.where(is_short, frequencies, scaled)


def _yarn(rope: RopeDescription, head_dim: int) -> torch.Tensor:
    low = _yarn_border(rope, head_dim, rope.beta_fast)
    high = _yarn_border(rope, head_dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = _plain(rope, head_dim)
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp)


def _yarn_border(rope: RopeDescription, head_dim: int, num_rotations: float) -> float:
    """Return the dimension that turns so often over the original context."""
    length = rope.original_max_position_embeddings / (num_rotations * 2 * math.pi)
    return head_dim * math.log(length) / (2 * math.log(rope.theta))


_FREQUENCIES: dict[str, Callable[[RopeDescription, int], torch.Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
