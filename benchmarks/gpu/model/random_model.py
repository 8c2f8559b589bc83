"""A model of any shape with random weights, without a file: made on the device, where it stays.

Weights are normal with variance ``1 / fan-in`` and norms are one, so that every part of a layer
keeps the size of what it is given and the residual stream grows with the square root of the depth:
activations stay finite in bf16 and fp16, whatever the depth.
"""

import hashlib
import math
from collections.abc import Sequence

import torch

from pagoda_engine import LoadedModel
from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import DecoderDescription

_CHUNK_ELEMENTS = 1 << 26
"""Elements drawn at once. Bounds what the generator needs beside the weights."""


class RandomWeights:
    """A `WeightSource` that draws instead of reading."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return the parts joined; the caller owns it."""
        first = parts[0].shape
        joined = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        if all(part.name.endswith("norm.weight") for part in parts):
            return joined.fill_(1.0)
        # Biases, the only other vectors, are small beside the products that they are added to.
        deviation = 0.1 if len(first) == 1 else 1 / math.sqrt(first[-1])
        for chunk in joined.view(-1).split(_CHUNK_ELEMENTS):
            chunk.normal_(0.0, deviation, generator=self._generator)
        return joined


def random_model(
    description: DecoderDescription,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    max_positions: int,
) -> LoadedModel:
    """Build a model that can run; the same arguments give the same weights on the same device.

    Args:
        description: the shape, see `shapes.SHAPES`.
        dtype: of weights, activations and KV.
        device: where the weights are made.
        seed: of the weights.
        max_positions: longest sequence; at most the description's.
    """
    identity = f"{description} {dtype} {seed}"
    return LoadedModel(
        description=description,
        decoder=build_decoder(
            description,
            RandomWeights(dtype, device, seed),
            max_positions=min(max_positions, description.max_position_embeddings),
            device=device,
        ),
        device=device,
        dtype=dtype,
        eos_token_ids=frozenset(),
        fingerprint=hashlib.blake2b(identity.encode(), digest_size=16).digest(),
    )
