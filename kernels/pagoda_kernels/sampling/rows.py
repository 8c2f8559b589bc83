"""How each row of one step's logits is sampled: parameters as tensors, built once per step.

Knows parameters. Knows nothing of logits, sequences or stop conditions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

MASS_ONE = 2**62
"""Mass of probability 1: probabilities are added up as integers, so that no order shows."""

_LARGEST = np.finfo(np.float32).max
_SEED_BITS = 64
_INDEX_BITS = 32


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, all ``[S]`` on the device of the logits.

    The random number of a row is a function of its seed and index alone.

    Attributes:
        temperature: float64 holding a finite float32; 0 is greedy, and then nothing else counts.
        min_p: float64, used as float32; drop what is less likely than min_p times the likeliest;
            0 = off.
        top_k: int64; keep the k likeliest and what equals the last of them; 0 = off.
        top_p: int64 >= 1; keep the smallest set with this mass, and equals; MASS_ONE = off.
        seeds: int64 holding the bits of an unsigned 64-bit seed, Philox's key.
        indices: int64 below 2**32: output index of the token, Philox's lowest counter word.
        storage: int64 ``[6, S]``, the memory of all of them in this order.
    """

    temperature: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    seeds: torch.Tensor
    indices: torch.Tensor
    storage: torch.Tensor = field(repr=False)


def plan_sampling(
    *,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
    min_ps: Sequence[float],
    seeds: Sequence[int],
    indices: Sequence[int],
    device: torch.device,
    into: SamplingRows | None = None,
) -> SamplingRows:
    """Build the rows of one step. One copy to the device, which nobody waits for.

    Args:
        temperatures: >= 0 each, rounded to float32; what exceeds its largest is that.
        top_ks: >= 0 each.
        top_ps: 0 to 1 each.
        min_ps: 0 to 1 each.
        seeds: unsigned 64-bit each.
        indices: unsigned 32-bit each.
        device: of the logits.
        into: rows of an earlier plan for as many rows on `device`, to overwrite in place, for CUDA
            graphs that read them; the copy is queued on the current stream. None for new memory.

    Returns:
        `into` if given.

    Raises:
        ValueError: lists of different lengths, a value out of range, or `into` does not fit.
    """
    lists = {"temperatures": temperatures, "top_ks": top_ks, "top_ps": top_ps, "min_ps": min_ps,
             "seeds": seeds, "indices": indices}  # fmt: skip
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{len(values)} {name}" for name, values in lists.items())
        raise ValueError(f"expected lists of one length, got {lengths}")
    _check_range("temperatures", temperatures, 0.0, float("inf"))
    _check_range("top_ks", top_ks, 0, 2**31 - 1)
    _check_range("top_ps", top_ps, 0.0, 1.0)
    _check_range("min_ps", min_ps, 0.0, 1.0)
    _check_range("seeds", seeds, 0, 2**_SEED_BITS - 1)
    _check_range("indices", indices, 0, 2**_INDEX_BITS - 1)
    is_cpu = device.type == "cpu"
    packed = torch.empty((6, len(seeds)), dtype=torch.int64, pin_memory=not is_cpu)
    host = packed.numpy()
    floats = host.view(np.float64)
    floats[0] = np.minimum(temperatures, _LARGEST).astype(np.float32)
    floats[1] = min_ps
    host[2] = top_ks
    host[3] = [max(1, int(top_p * MASS_ONE)) for top_p in top_ps]
    host.view(np.uint64)[4] = seeds
    host[5] = indices
    if into is None:
        storage = packed if is_cpu else packed.to(device, non_blocking=True)
        temperature, min_p = storage[:2].view(torch.float64).unbind()
        top_k, mass, seed_bits, index = storage[2:].unbind()
        return SamplingRows(temperature, min_p, top_k, mass, seed_bits, index, storage)
    if len(into.seeds) != len(seeds) or into.storage.device != device:
        raise ValueError(
            f"into: expected {len(seeds)} rows on {device}, "
            f"got {len(into.seeds)} on {into.storage.device}"
        )
    into.storage.copy_(packed, non_blocking=True)
    return into


def _check_range(name: str, values: Sequence[float], low: float, high: float) -> None:
    for row, value in enumerate(values):
        if not low <= value <= high:
            raise ValueError(f"{name}[{row}]: expected {low} to {high}, got {value}")
