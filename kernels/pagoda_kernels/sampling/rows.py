"""How each row of one step's logits is sampled: parameters as tensors, built once per step.

Knows parameters. Knows nothing of logits, sequences or stop conditions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pagoda_kernels.sampling.philox import COIN, UNIFORM_BITS, philox_mantissa

MASS_ONE = 2**62
"""Mass of probability 1: probabilities are added up as integers, so that no order shows."""

NO_XTC = 1.0
"""Threshold of a row without XTC, or whose coin says that it is off at this token."""

_LARGEST = np.finfo(np.float32).max
_SEED_BITS = 64
_INDEX_BITS = 32
_NUM_FLOATS = 4


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, all ``[S]`` on the device of the logits.

    The random numbers of a row are a function of its seed and index alone.

    Attributes:
        temperature: float64 holding a finite float32; 0 is greedy, and then nothing else counts.
        min_p: float64, used as float32; drop what is less likely than min_p times the likeliest;
            0 = off.
        top_n_sigma: float64 holding a finite float32; drop what is more than so many standard
            deviations of the row's finite logits below the largest; 0 = off.
        xtc_threshold: float64, used as float32; of what is this likely or more, once all else is
            dropped, keep the least likely and what equals it; NO_XTC = off.
        top_k: int64; keep the k likeliest and what equals the last of them; 0 = off.
        top_p: int64 >= 1; keep the smallest set with this mass, and equals; MASS_ONE = off.
        typical_p: int64 >= 1; keep the smallest set with this mass whose information (minus log
            probability) is next to the mean, and equals; MASS_ONE = off.
        seeds: int64 holding the bits of an unsigned 64-bit seed, Philox's key.
        indices: int64 below 2**32: output index of the token, Philox's lowest counter word.
        storage: int64 ``[9, S]``, the memory of all of them in this order.
        truncates_more: whether a row has top-n-sigma, typical-p or XTC; kernels leave them out
            where none has.
    """

    temperature: torch.Tensor
    min_p: torch.Tensor
    top_n_sigma: torch.Tensor
    xtc_threshold: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    typical_p: torch.Tensor
    seeds: torch.Tensor
    indices: torch.Tensor
    storage: torch.Tensor = field(repr=False)
    truncates_more: bool

    @classmethod
    def of(cls, storage: torch.Tensor, *, truncates_more: bool) -> "SamplingRows":
        """Return the rows that lie in int64 ``[9, S]``, contiguous."""
        temperature, min_p, top_n_sigma, xtc = storage[:_NUM_FLOATS].view(torch.float64).unbind()
        top_k, top_p, typical_p, seeds, indices = storage[_NUM_FLOATS:].unbind()
        return cls(
            temperature=temperature,
            min_p=min_p,
            top_n_sigma=top_n_sigma,
            xtc_threshold=xtc,
            top_k=top_k,
            top_p=top_p,
            typical_p=typical_p,
            seeds=seeds,
            indices=indices,
            storage=storage,
            truncates_more=truncates_more,
        )


def plan_sampling(
    *,
    temperatures: Sequence[float],
    top_ks: Sequence[int],
    top_ps: Sequence[float],
    min_ps: Sequence[float],
    seeds: Sequence[int],
    indices: Sequence[int],
    device: torch.device,
    top_n_sigmas: Sequence[float] | None = None,
    typical_ps: Sequence[float] | None = None,
    xtc_thresholds: Sequence[float] | None = None,
    xtc_probabilities: Sequence[float] | None = None,
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
        top_n_sigmas: >= 0 each, rounded as temperatures are; None = off for all.
        typical_ps: 0 to 1 each; None = off for all.
        xtc_thresholds: 0 to 1 each; None = off for all.
        xtc_probabilities: 0 to 1 each, of XTC at a token, for which a coin is thrown here; None =
            off for all.
        into: rows of an earlier plan for as many rows on `device`, to overwrite in place, for CUDA
            graphs that read them; the copy is queued on the current stream. None for new memory.

    Returns:
        `into` if given.

    Raises:
        ValueError: lists of different lengths, a value out of range, or `into` does not fit.
    """
    num_rows = len(seeds)
    top_n_sigmas = [0.0] * num_rows if top_n_sigmas is None else top_n_sigmas
    typical_ps = [1.0] * num_rows if typical_ps is None else typical_ps
    xtc_thresholds = [NO_XTC] * num_rows if xtc_thresholds is None else xtc_thresholds
    xtc_probabilities = [0.0] * num_rows if xtc_probabilities is None else xtc_probabilities
    lists = {"temperatures": temperatures, "top_ks": top_ks, "top_ps": top_ps, "min_ps": min_ps,
             "top_n_sigmas": top_n_sigmas, "typical_ps": typical_ps,
             "xtc_thresholds": xtc_thresholds, "xtc_probabilities": xtc_probabilities,
             "seeds": seeds, "indices": indices}  # fmt: skip
    if len({len(values) for values in lists.values()}) > 1:
        lengths = ", ".join(f"{len(values)} {name}" for name, values in lists.items())
        raise ValueError(f"expected lists of one length, got {lengths}")
    for name in ("temperatures", "top_n_sigmas"):
        _check_range(name, lists[name], 0.0, float("inf"))
    _check_range("top_ks", top_ks, 0, 2**31 - 1)
    for name in ("top_ps", "min_ps", "typical_ps", "xtc_thresholds", "xtc_probabilities"):
        _check_range(name, lists[name], 0.0, 1.0)
    _check_range("seeds", seeds, 0, 2**_SEED_BITS - 1)
    _check_range("indices", indices, 0, 2**_INDEX_BITS - 1)
    is_cpu = device.type == "cpu"
    packed = torch.empty((9, num_rows), dtype=torch.int64, pin_memory=not is_cpu)
    host = packed.numpy()
    floats = host.view(np.float64)
    floats[0] = np.minimum(temperatures, _LARGEST).astype(np.float32)
    floats[1] = min_ps
    floats[2] = np.minimum(top_n_sigmas, _LARGEST).astype(np.float32)
    floats[3] = [
        _thrown(*row) for row in zip(xtc_thresholds, xtc_probabilities, seeds, indices, strict=True)
    ]
    host[4] = top_ks
    host[5] = list(map(_mass, top_ps))
    host[6] = list(map(_mass, typical_ps))
    host.view(np.uint64)[7] = seeds
    host[8] = indices
    truncates_more = bool(
        floats[2].any() or (floats[3] < NO_XTC).any() or (host[6] < MASS_ONE).any()
    )
    if into is None:
        storage = packed if is_cpu else packed.to(device, non_blocking=True)
        return SamplingRows.of(storage, truncates_more=truncates_more)
    if len(into.seeds) != num_rows or into.storage.device != device:
        raise ValueError(
            f"into: expected {num_rows} rows on {device}, "
            f"got {len(into.seeds)} on {into.storage.device}"
        )
    if truncates_more and not into.truncates_more:
        raise ValueError("into: expected rows planned with top-n-sigma, typical-p or XTC")
    into.storage.copy_(packed, non_blocking=True)
    return into


def _mass(probability: float) -> int:
    return max(1, int(probability * MASS_ONE))


def _thrown(threshold: float, probability: float, seed: int, index: int) -> float:
    """Return the threshold of XTC if its coin says that it is on at this token, else NO_XTC."""
    if probability == 0 or threshold == NO_XTC:
        return NO_XTC
    is_on = philox_mantissa(seed, index, COIN) < probability * 2**UNIFORM_BITS
    return threshold if is_on else NO_XTC


def _check_range(name: str, values: Sequence[float], low: float, high: float) -> None:
    for row, value in enumerate(values):
        if not low <= value <= high:
            raise ValueError(f"{name}[{row}]: expected {low} to {high}, got {value}")
