"""Rotation frequencies of RoPE and its long-context variants.

A rotation turns K before it is cached, so it cannot change while a sequence grows. Where
transformers chooses by the length of a sequence, an engine turns every one as transformers turns
one of the engine's longest.

Knows positions and frequencies. Knows nothing of queries or keys. Names and formulas follow the
``rope_type`` values of Hugging Face configurations.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError

GGUF_ROTARY_FACTOR = "rotary_factor"
"""Field for what a GGUF file says of the part of a head that turns, which every family obeys."""


@dataclass(frozen=True, slots=True)
class RopeDescription:
    """Which rotation a model uses.

    Attributes:
        theta: base of the wavelengths.
        rope_type: ``default``, ``linear``, ``dynamic``, ``llama3``, ``yarn``, ``longrope`` or
            ``proportional``: wavelengths are those of a whole head, of which the shortest turn.
        factor: how much longer the context became.
        original_max_position_embeddings: context before that; 0 where the type does not need it.
        low_freq_factor: llama3; wavelengths above original / this are scaled fully.
        high_freq_factor: llama3; wavelengths below original / this stay.
        beta_fast: yarn; dimensions with more rotations than this stay.
        beta_slow: yarn; dimensions with fewer are scaled fully.
        truncate: yarn; round the two borders outwards to whole dimensions.
        attention_factor: yarn and longrope; multiplies cosines and sines.
        short_factors: longrope; of every wavelength, for sequences up to the original context.
        long_factors: the same for longer ones.
        rotary_factor: part of a head's dims that turns; the others follow it and stay; see
            `is_spread`.
        is_interleaved: pairs of dims turn that lie side by side, not half a rotation apart.
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
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    rotary_factor: float = 1.0
    is_interleaved: bool = False

    @property
    def extended_length(self) -> int:
        """Positions that scaling reaches; 0 where the configuration says them itself."""
        if self.rope_type not in ("linear", "dynamic", "yarn"):
            return 0
        return int(self.original_max_position_embeddings * self.factor)

    @property
    def is_spread(self) -> bool:
        """Whether dims that turn are the first ones of each half of a head, not of the head."""
        return self.rope_type == "proportional" and self.rotary_factor < 1

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many dims of a head turn."""
        return int(head_dim * self.rotary_factor)

    def for_length(self, max_positions: int, head_dim: int) -> "RopeDescription":
        """Return the rotation of an engine whose longest sequence has so many tokens.

        Equal results turn equally; unequal ones must not share KV.
        """
        original = self.original_max_position_embeddings
        if self.rope_type == "dynamic":
            grown = max(max_positions, original) / original
            dim = self.rotary_dim(head_dim)
            stretch: float = (self.factor * grown - (self.factor - 1)) ** (dim / (dim - 2))
            return RopeDescription(
                theta=self.theta * stretch,
                rotary_factor=self.rotary_factor,
                is_interleaved=self.is_interleaved,
            )
        if self.rope_type == "longrope":
            chosen = self.long_factors if max_positions > original else self.short_factors
            return replace(self, short_factors=chosen, long_factors=chosen)
        return self


def read_rope(
    config: ConfigReader,
    *,
    default_theta: float = 10000.0,
    default_rotary_factor: float | None = None,
    is_interleaved: bool = False,
    layer_type: str = "",
    other_names: Mapping[str, str] | None = None,
) -> RopeDescription:
    """Read the rotation from a model's configuration, of either generation.

    ``rope_parameters`` holds everything; before it existed there were ``rope_theta`` and
    ``rope_scaling``. Where there are both, as somebody has added the older one to a newer file,
    they must say the same: transformers drops what only the newer one says, theta included.

    Args:
        config: of the model.
        default_theta: where the field is absent.
        default_rotary_factor: part of a head that turns where the field is absent; None: a family
            of which transformers turns whole heads, whatever ``partial_rotary_factor`` says.
        is_interleaved: which pairs turn, which no configuration says.
        layer_type: whose rotation it is, where ``rope_parameters`` has one for each type.
        other_names: what a family calls a ``rope_type``.

    Raises:
        UnsupportedModelError: another ``rope_type``; or a scaled one of a part of a head, in a
            family that turns whole ones (transformers fails at that).
        CheckpointError: a parameter is missing or out of range, or there are two rotations.
    """

    def read(section: ConfigReader) -> RopeDescription:
        return _read_section(
            config, section, default_theta, default_rotary_factor, is_interleaved, other_names or {}
        )

    first, *others = (read(section) for section in _sections(config, layer_type))
    if any(other != first for other in others):
        raise CheckpointError(
            config.path,
            "rope_scaling and rope_parameters say different things: say all of it in "
            "rope_parameters, rope_theta too, and leave rope_scaling out",
        )
    return first


def _read_section(
    config: ConfigReader,
    section: ConfigReader,
    default_theta: float,
    default_rotary_factor: float | None,
    is_interleaved: bool,
    other_names: Mapping[str, str],
) -> RopeDescription:
    theta = _either(section, config, "rope_theta").number("rope_theta", default_theta)
    rope_type = _rope_type(section)
    rope_type = other_names.get(rope_type, rope_type)
    if rope_type not in _FREQUENCIES:
        raise UnsupportedModelError(config.path, "rope_type", rope_type, tuple(_FREQUENCIES))
    rotary_factor = _rotary_factor(config, section, rope_type, default_rotary_factor)
    plain = RopeDescription(theta=theta, rotary_factor=rotary_factor, is_interleaved=is_interleaved)
    return _SCALINGS[rope_type](replace(plain, rope_type=rope_type), config, section)


def _rope_type(section: ConfigReader) -> str:
    # Configurations before 2024 call it "type".
    return section.string("rope_type", section.string("type", "default"))


def _rotary_factor(
    config: ConfigReader, section: ConfigReader, rope_type: str, default: float | None
) -> float:
    """Return the part of a head that turns; a GGUF file says it under a name of its own."""
    is_gguf = config.has(GGUF_ROTARY_FACTOR)
    name = GGUF_ROTARY_FACTOR if is_gguf else "partial_rotary_factor"
    factor = _either(section, config, name).number(name, 1.0 if default is None else default)
    if factor > 1:
        raise CheckpointError(config.path, f"{name} is {factor}, must be at most 1")
    if default is not None or is_gguf:
        return factor
    if factor < 1 and rope_type != "default":
        raise UnsupportedModelError(config.path, f"{name} of {rope_type} here", factor, ("1",))
    return 1.0


def _sections(config: ConfigReader, layer_type: str) -> list[ConfigReader]:
    """Return what says how the rotation is scaled, the newer one first; there may be an older."""
    newer, older = (
        config.section(name) if config.has(name) else ConfigReader(config.path, {})
        for name in ("rope_parameters", "rope_scaling")
    )
    is_of_types = newer.has(layer_type)
    if is_of_types:
        newer = newer.section(layer_type)
    if older.has(layer_type):
        older = older.section(layer_type)
    # The older one is of all layers, or of those that see everything.
    if not older.fields or (is_of_types and layer_type != "full_attention"):
        return [newer]
    if not newer.fields:
        return [older]
    kept = {
        name: newer.fields[name]
        for name in ("rope_theta", "partial_rotary_factor")
        if newer.has(name) and not config.has(name)
    }
    return [newer, older.replaced(**{**kept, **older.fields})]


def _either(section: ConfigReader, config: ConfigReader, name: str) -> ConfigReader:
    return section if section.has(name) else config


def _read_plain(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    return rope


def _read_linear(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    # Without it nobody says whether max_position_embeddings counts before or after scaling.
    name = "original_max_position_embeddings"
    original = section.integer(name) if section.has(name) else 0
    factor = section.number("factor")
    return replace(rope, factor=factor, original_max_position_embeddings=original)


def _read_proportional(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    return replace(rope, factor=section.number("factor", 1.0))


def _read_dynamic(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    # As transformers, which looks for no other field: it counts before scaling.
    original = config.integer("max_position_embeddings")
    factor = section.number("factor")
    return replace(rope, factor=factor, original_max_position_embeddings=original)


def _read_llama3(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    return replace(
        rope,
        factor=section.number("factor"),
        original_max_position_embeddings=_original_length(config, section),
        low_freq_factor=section.number("low_freq_factor"),
        high_freq_factor=section.number("high_freq_factor"),
    )


def _read_yarn(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    factor = section.number("factor")
    return replace(
        rope,
        factor=factor,
        original_max_position_embeddings=_original_length(config, section),
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.boolean("truncate", True),
        attention_factor=_yarn_attention_factor(section, factor),
    )


def _read_longrope(
    rope: RopeDescription, config: ConfigReader, section: ConfigReader
) -> RopeDescription:
    original = _original_length(config, section)
    longest = config.integer("max_position_embeddings")
    factor = section.number("factor", longest / original)
    by_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return replace(
        rope,
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=section.number("attention_factor", by_factor),
        short_factors=section.numbers("short_factor"),
        long_factors=section.numbers("long_factor"),
    )


def _original_length(config: ConfigReader, section: ConfigReader) -> int:
    """Return the context before scaling; of two numbers the one that transformers takes."""
    name = "original_max_position_embeddings"
    if section.has(name) or config.has(name):
        return _either(config, section, name).integer(name)
    return config.integer("max_position_embeddings")


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    if section.has("attention_factor"):
        return section.number("attention_factor")

    if section.fields.get("mscale") and section.fields.get("mscale_all_dim"):
        over = _yarn_magnitude(factor, section.number("mscale_all_dim"))
        return _yarn_magnitude(factor, section.number("mscale")) / over
    return _yarn_magnitude(factor, 1.0)


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def read_score_multiplier(config: ConfigReader) -> float:
    """Return what DeepSeek multiplies scores by where scaling made the context longer.

    `RopeDescription.attention_factor` is then for the part of a head that turns; this is for all.

    Raises:
        CheckpointError: a parameter is out of range.
    """
    section = _sections(config, "")[0]
    if not section.fields.get("mscale_all_dim") or _rope_type(section) == "default":
        return 1.0
    factor = section.number("factor", 1.0)
    return _yarn_magnitude(factor, section.number("mscale_all_dim")) ** 2


def cos_sin_table(rope: RopeDescription, head_dim: int, max_positions: int) -> torch.Tensor:
    """Return ``[max_positions, rotary dim]`` float32 cpu: all cosines, then all sines.

    Of heads whose dims that turn come first, whatever their order in the files is.
    """
    rope = rope.for_length(max_positions, head_dim)
    rotary_dim = rope.rotary_dim(head_dim)
    width = head_dim if rope.rope_type == "proportional" else rotary_dim
    frequencies = _FREQUENCIES[rope.rope_type](rope, width)[: rotary_dim // 2]
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies[None]
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * rope.attention_factor


def _plain(rope: RopeDescription, dim: int) -> torch.Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / (rope.theta**exponents)


def _linear(rope: RopeDescription, dim: int) -> torch.Tensor:
    return _plain(rope, dim) / rope.factor


def _llama3(rope: RopeDescription, dim: int) -> torch.Tensor:
    frequencies = _plain(rope, dim)
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


def _longrope(rope: RopeDescription, dim: int) -> torch.Tensor:
    return _plain(rope, dim) / torch.tensor(rope.short_factors)  # chosen by `for_length`


def _yarn(rope: RopeDescription, dim: int) -> torch.Tensor:
    low = _yarn_border(rope, dim, rope.beta_fast)
    high = _yarn_border(rope, dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = _plain(rope, dim)
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp)


def _yarn_border(rope: RopeDescription, dim: int, num_rotations: float) -> float:
    """Return the dimension that turns so often over the original context."""
    length = rope.original_max_position_embeddings / (num_rotations * 2 * math.pi)
    return dim * math.log(length) / (2 * math.log(rope.theta))


_FREQUENCIES: dict[str, Callable[[RopeDescription, int], torch.Tensor]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _plain,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _linear,
}
_SCALINGS: dict[str, Callable[[RopeDescription, ConfigReader, ConfigReader], RopeDescription]] = {
    "default": _read_plain,
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
    "proportional": _read_proportional,
}
