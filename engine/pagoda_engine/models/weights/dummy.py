"""Random weights of any decoder: for benchmarks and capacity tests without a checkpoint's files.

Knows shapes and names. Reads nothing.
"""

import hashlib
import math
from collections.abc import Sequence

import torch

from pagoda_engine.checkpoints.tensor_part import Part


class DummyWeights:
    """A `WeightSource` without files: the same names have the same weights in every process."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Make weights of a dtype on a device."""
        self._dtype = dtype
        self._device = device

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return weights that keep the size of what they multiply; norms of ones, no bias."""
        tensor = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        if len(shape) == 1:
            return tensor.fill_(0.0 if parts[0].name.endswith(".bias") else 1.0)
        said = repr([(part.name, part.shape) for part in parts]).encode()
        seed = int.from_bytes(hashlib.blake2b(said, digest_size=7).digest(), "little")
        generator = torch.Generator(self._device).manual_seed(seed)
        bound = math.sqrt(3 / shape[-1])  # so that their variance is 1 / K
        return tensor.uniform_(-bound, bound, generator=generator)
