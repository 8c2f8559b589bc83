"""How each row of one step's logits is sampled: parameters as tensors, built once per step.

Knows parameters. Knows nothing of logits, sequences or stop conditions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_SEED_BITS = 64
_INDEX_BITS = 32


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, all ``[S]`` on the device of the logits.

    The random number of a row is a function of its seed and index alone.

    Attributes:
        temperature: float32; 0 is greedy, and then nothing else counts.
        top_k: int32; keep the k likeliest and what equals the last of them; 0 = off.
        top_p: float64; keep the smallest set with this probability, and equals; 1 = off.
        min_p: float32; drop what is less likely than min_p times the likeliest; 0 = off.
        seeds: int64 holding the bits of an unsigned 64-bit seed, Philox's key.
        indices: int64 below 2**32: output index of the token, Philox's lowest counter word.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    indices: torch.Tensor


def plan_sampling(
    *,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
    min_ps: Sequence[float],
    seeds: Sequence[int],
    indices: Sequence[int],
    device: torch.device,
) -> SamplingRows:
    """Build the rows of one step. Copies to the device without waiting for it.

    Raises:
        ValueError: lists of different lengths, or a value out of range.
    """
    lists = {"temperatures": temperatures, "top_ks": top_ks, "top_ps": top_ps, "min_ps": min_ps,
             "seeds": seeds, "indices": indices}  # fmt: skip
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{len(values)} {name}" for name, values in lists.items())
        raise ValueError(f"expected lists of one length, got {lengths}")
    _check_range("temperatures", temperatures, 0.0, float("inf"))
    _check_range("top_ks", top_ks, 0, 2**31 - 1)
    _check_range("min_ps", min_ps, 0.0, 1.0)
    _check_range("seeds", seeds, 0, 2**_SEED_BITS - 1)
    _check_range("indices", indices, 0, 2**_INDEX_BITS - 1)

    def column(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return _to_device(torch.tensor(list(values), dtype=dtype), device)

    seed_bits = torch.from_numpy(np.array(seeds, dtype=np.uint64).view(np.int64))
    return SamplingRows(
        temperature=column(temperatures, torch.float32),
        top_k=column(top_ks, torch.int32),
        top_p=column(top_ps, torch.float64),
        min_p=column(min_ps, torch.float32),
        seeds=_to_device(seed_bits, device),
        indices=column(indices, torch.int64),
    )


def _to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _check_range(name: str, values: Sequence[float], low: float, high: float) -> None:
    for row, value in enumerate(values):
        if not low <= value <= high:
            raise ValueError(f"{name}[{row}]: expected {low} to {high}, got {value}")
