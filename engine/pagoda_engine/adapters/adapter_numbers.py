"""Whether the numbers of an adapter can be an adapter's, before it has a slot.

Knows tensors and a dtype. Knows nothing of files but the name that errors begin with.
"""

from pathlib import Path

import torch

from pagoda_engine.adapters.adapter import LoraWeights
from pagoda_engine.errors import AdapterError

MAX_GAIN = 1000.0
"""Largest size of what an adapter adds to a projection's outputs, for inputs of size 1 (both root
mean square). The model's own weights make about 1 of 1 there, up to some tens; what is beyond this
leaves nothing of them."""

_NUM_INPUTS = 4


def check_numbers(
    path: Path, name: str, weights: LoraWeights, scale: float, dtype: torch.dtype
) -> None:
    """Refuse what a projection cannot be given.

    Args:
        path: of the adapter's tensors.
        name: of the projection.
        weights: for it, of any float dtype.
        scale: of their product.
        dtype: that they will be held in.

    Raises:
        AdapterError: a number is not finite, or is not in `dtype`; or the product is too large.
    """
    for side, tensor in (("lora_A", weights.a), ("lora_B", weights.b)):
        if not bool(tensor.isfinite().all()):
            raise AdapterError(
                path, f"{name}.{side} has numbers that are not finite; copy the file again"
            )
        largest, limit = float(tensor.abs().max()), torch.finfo(dtype).max
        if largest > limit:
            raise AdapterError(
                path,
                f"{name}.{side} has numbers up to {largest:.3g}, must be at most {limit:.3g} for "
                f"{str(dtype).removeprefix('torch.')}, which the model is computed in",
            )
    gain = _gain(weights, scale)
    if gain > MAX_GAIN:
        raise AdapterError(
            path,
            f"{name}: scale times B A makes outputs of {gain:.3g} of inputs of 1, must be at most "
            f"{MAX_GAIN:g}, which is far more than a model's own weights do; the scale is "
            f"{scale:g}: check lora_alpha and r, or train it again",
        )


def _gain(weights: LoraWeights, scale: float) -> float:
    """Return the root mean square of ``scale * B A x`` for a few random x of root mean square 1.

    Always the same ones, so that all workers find the same.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(weights.a.shape[1], _NUM_INPUTS, generator=generator, dtype=torch.float64)
    outputs = weights.b.double() @ (weights.a.double() @ inputs)
    return scale * float(outputs.square().mean().sqrt())
