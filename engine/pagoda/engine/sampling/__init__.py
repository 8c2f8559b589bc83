"""From logits to tokens; every random number is addressed by (seed, output index)."""

from pagoda.engine.sampling.philox import UniformSource, philox4x32, uniforms
from pagoda.engine.sampling.sampler import SampledToken, sample
from pagoda.engine.sampling.sampling_state import SamplingState

__all__ = ["SampledToken", "SamplingState", "UniformSource", "philox4x32", "sample", "uniforms"]
