"""How rows of logits are sampled: a sequence's parameters once, those of a step side by side.

Knows parameters. Knows nothing of logits, sequences or stop conditions.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagoda_kernels.sampling.philox import COIN, UNIFORM_BITS, philox_mantissa

MASS_ONE = 2**62
"""Mass of probability 1: probabilities are added up as integers, so that no order shows."""

NO_XTC = 1.0
"""Threshold of a row without XTC, or whose coin says that it is off at this token."""

_LARGEST = float(np.finfo(np.float32).max)
_SEED_BITS = 64
_INDEX_BITS = 32
_NUM_PARAMETERS = 9
_XTC, _INDEX = 3, 8


@dataclass(frozen=True, slots=True)
class SamplingColumn:
    """How the tokens of one sequence are sampled, but for what their index makes of it.

    Attributes:
        numbers: int64 ``[9]`` as in `SamplingRows.storage`, without XTC and index.
        xtc: threshold, probability and seed; None if it is off.
        truncates_more: top-n-sigma or typical-p is on.
    """

    numbers: bytes
    xtc: tuple[float, float, int] | None
    truncates_more: bool


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, all ``[S]`` on the device of the logits.

    The random numbers of a row are a function of its seed and index alone.

    Attributes:
        storage: int64 ``[9, S]``, contiguous: the memory of all parameters, in the order below.
        truncates_more: whether a row has top-n-sigma, typical-p or XTC; kernels leave them out
            where none has.
    """

    storage: torch.Tensor
    truncates_more: bool

    @property
    def temperature(self) -> torch.Tensor:
        """float64 holding a finite float32; 0 is greedy, and then nothing else counts."""
        return self.storage[0].view(torch.float64)

    @property
    def min_p(self) -> torch.Tensor:
        """float64, used as float32; drop what is less likely than this times the likeliest."""
        return self.storage[1].view(torch.float64)

    @property
    def top_n_sigma(self) -> torch.Tensor:
        """float64 holding a finite float32; 0 = off.

        Drop what is more than so many standard deviations of the row's finite logits below the
        largest.
        """
        return self.storage[2].view(torch.float64)

    @property
    def xtc_threshold(self) -> torch.Tensor:
        """float64, used as float32; NO_XTC = off.

        Of what is this likely or more, once all else is dropped, keep the least likely and what
        equals it.
        """
        return self.storage[_XTC].view(torch.float64)

    @property
    def top_k(self) -> torch.Tensor:
        """int64; keep the k likeliest and what equals the last of them; 0 = off."""
        return self.storage[4]

    @property
    def top_p(self) -> torch.Tensor:
        """int64 >= 1; keep the smallest set with this mass, and equals; MASS_ONE = off."""
        return self.storage[5]

    @property
    def typical_p(self) -> torch.Tensor:
        """int64 >= 1; MASS_ONE = off.

        Keep the smallest set with this mass whose information (minus log probability) is next to
        the mean, and equals.
        """
        return self.storage[6]

    @property
    def seeds(self) -> torch.Tensor:
        """int64 holding the bits of an unsigned 64-bit seed, Philox's key."""
        return self.storage[7]

    @property
    def indices(self) -> torch.Tensor:
        """int64 below 2**32: output index of the token, Philox's lowest counter word."""
        return self.storage[_INDEX]


def sampling_column(
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    top_n_sigma: float = 0.0,
    typical_p: float = 1.0,
    xtc_threshold: float = NO_XTC,
    xtc_probability: float = 0.0,
) -> SamplingColumn:
    """Pack one sequence's parameters; what is not given is off.

    Args:
        temperature: >= 0, rounded to float32; what exceeds its largest is that.
        top_k: >= 0.
        top_p: 0 to 1.
        min_p: 0 to 1.
        seed: unsigned 64-bit.
        top_n_sigma: >= 0, rounded as the temperature is.
        typical_p: 0 to 1.
        xtc_threshold: 0 to 1.
        xtc_probability: 0 to 1, of XTC at a token, for which `plan_sampling` throws a coin.

    Raises:
        ValueError: a value is out of range.
    """
    _check_range("temperature", temperature, 0.0, float("inf"))
    _check_range("top_k", top_k, 0, 2**31 - 1)
    _check_range("top_p", top_p, 0.0, 1.0)
    _check_range("min_p", min_p, 0.0, 1.0)
    _check_range("seed", seed, 0, 2**_SEED_BITS - 1)
    _check_range("top_n_sigma", top_n_sigma, 0.0, float("inf"))
    _check_range("typical_p", typical_p, 0.0, 1.0)
    _check_range("xtc_threshold", xtc_threshold, 0.0, 1.0)
    _check_range("xtc_probability", xtc_probability, 0.0, 1.0)
    floats = _float32(temperature), min_p, _float32(top_n_sigma), NO_XTC
    typical_mass = _mass(typical_p)
    has_xtc = xtc_probability > 0 and xtc_threshold != NO_XTC
    return SamplingColumn(
        numbers=struct.pack("4d3qQq", *floats, top_k, _mass(top_p), typical_mass, seed, 0),
        xtc=(xtc_threshold, xtc_probability, seed) if has_xtc else None,
        truncates_more=floats[2] > 0 or typical_mass < MASS_ONE,
    )


def plan_sampling(
    columns: Sequence[SamplingColumn], indices: Sequence[int], device: torch.device
) -> SamplingRows:
    """Put the rows of one step side by side. One copy to the device, which nobody waits for.

    Args:
        columns: of the rows.
        indices: unsigned 32-bit each: the output index of each row's token.
        device: of the logits.

    Raises:
        ValueError: not as many indices as columns, or one is out of range.
    """
    if len(columns) != len(indices):
        raise ValueError(f"expected an index for each of {len(columns)} rows, got {len(indices)}")
    if indices:
        _check_range("indices", min(indices), 0, 2**_INDEX_BITS - 1)
        _check_range("indices", max(indices), 0, 2**_INDEX_BITS - 1)
    joined = np.frombuffer(b"".join(column.numbers for column in columns), np.int64)
    is_cpu = device.type == "cpu"
    shape = _NUM_PARAMETERS, len(columns)
    packed = torch.empty(shape, dtype=torch.int64, pin_memory=not is_cpu)
    host = packed.numpy()
    host[:] = joined.reshape(-1, _NUM_PARAMETERS).T
    host[_INDEX] = indices
    truncates_more = False
    for row, column in enumerate(columns):
        truncates_more |= column.truncates_more
        if column.xtc is not None and _is_on(column.xtc, indices[row]):
            host[_XTC : _XTC + 1].view(np.float64)[0, row] = column.xtc[0]
            truncates_more = True
    return SamplingRows(packed if is_cpu else packed.to(device, non_blocking=True), truncates_more)


def _mass(probability: float) -> int:
    return max(1, int(probability * MASS_ONE))


def _float32(value: float) -> float:
    return float(np.float32(min(value, _LARGEST)))


def _is_on(xtc: tuple[float, float, int], index: int) -> bool:
    """Throw the coin of XTC for one token."""
    _, probability, seed = xtc
    return bool(philox_mantissa(seed, index, COIN) < probability * 2**UNIFORM_BITS)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}: expected {low} to {high}, got {value}")
