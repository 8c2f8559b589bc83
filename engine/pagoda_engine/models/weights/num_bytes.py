"""How much memory a decoder's weights take, before any of them is read."""

import math
from collections.abc import Sequence

import torch

from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import DecoderDescription


def weight_bytes(description: DecoderDescription, dtype: torch.dtype) -> int:
    """Return the size of all weights on the device, every tied one once.

    Counted by what `build_decoder` asks for, so that the two cannot differ.
    """
    counting = _Counting(dtype)
    build_decoder(description, counting, max_positions=1, device=torch.device("meta"))
    return counting.num_bytes


class _Counting:
    """A `WeightSource` without weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.num_bytes = 0

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        self.num_bytes += math.prod(shape) * (dtype or self._dtype).itemsize
        return torch.empty(shape, device="meta")
