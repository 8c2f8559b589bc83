"""One adapter as it is read, before it has a slot.

Knows names of projections and tensors on the host. Knows nothing of files or slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """What is added to one projection: ``scale * b @ a``.

    Attributes:
        a: ``[r, K]`` on the host, as stored.
        b: ``[N, r]``.
    """

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """Weights for some projections of a decoder.

    Attributes:
        digest: 16 bytes; equal only for the same tensors and scale, wherever they were read from.
        rank: of every projection.
        scale: of what is added.
        weights: by the name of the projection, as the model's checkpoint calls it, layer and all.
    """

    digest: bytes
    rank: int
    scale: float
    weights: Mapping[str, LoraWeights] = field(repr=False)
