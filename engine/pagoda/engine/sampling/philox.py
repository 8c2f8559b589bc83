"""Philox4x32-10: random numbers that are a function of (key, counter), with no state.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11. Knows nothing of tokens.
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)


def philox4x32(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return four 32-bit words for each counter.

    Args:
        counters: ``[N, 4]`` uint64, each below 2**32.
        key: two words below 2**32.

    Returns:
        ``[N, 4]`` uint64, each below 2**32.
    """
    c0, c1, c2, c3 = (counters[:, i] for i in range(4))
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = (product1 >> _SHIFT32) ^ c1 ^ np.uint64(k0)
        c1 = product1 & _LOW32
        c2 = (product0 >> _SHIFT32) ^ c3 ^ np.uint64(k1)
        c3 = product0 & _LOW32
        k0 = (k0 + _WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=1)


def uniforms(seed: int, first_index: int, count: int) -> NDArray[np.float64]:
    """Return the numbers in [0, 1) of the output indices [first_index, first_index + count).

    Args:
        seed: unsigned 64 bit; the key.
        first_index: below 2**32; the lowest counter word, the others are 0.
        count: how many.

    Returns:
        ``[count]`` with 53 random bits each, from the first two words.
    """
    counters = np.zeros((count, 4), dtype=np.uint64)
    counters[:, 0] = np.arange(first_index, first_index + count, dtype=np.uint64)
    words = philox4x32(counters, (seed & 0xFFFFFFFF, seed >> 32))
    mantissas = (words[:, 0] >> np.uint64(5) << np.uint64(26)) | (words[:, 1] >> np.uint64(6))
    return mantissas.astype(np.float64) * 2.0**-53


class UniformSource:
    """The numbers of one seed. Computes a run of indices at a time, since outputs ask in order."""

    _RUN = 64

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._first_index = 0
        self._values: list[float] = []

    def at(self, index: int) -> float:
        """Return the number of one output index, whatever was asked before."""
        offset = index - self._first_index
        if not 0 <= offset < len(self._values):
            self._first_index = index - index % self._RUN
            self._values = uniforms(self._seed, self._first_index, self._RUN).tolist()
            offset = index - self._first_index
        return self._values[offset]
