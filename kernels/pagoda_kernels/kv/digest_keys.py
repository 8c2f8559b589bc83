"""Multipliers of the block digest, drawn from one constant so that every peer has the same.

Knows positions of words. Knows nothing of tensors' devices or of who digests what.
"""

from functools import lru_cache

import numpy as np

TILE_WORDS = 64
"""32-bit words of a row; word ``p`` is column ``p % TILE_WORDS`` of row ``p // TILE_WORDS``."""

SEED = 0x5061676F64610001
"""Start of the drawn keys. Another value is another digest."""

BASE = 0x9E3779B97F4A7C13
"""Base of the powers of lane 0. It is 3 modulo 8, on which what the digest promises rests."""

GAMMA = 0x9E3779B97F4A7C15
MIX_FIRST, MIX_SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Bijection of 64-bit integers after which every bit depends on every bit (SplitMix64)."""
    value = (value ^ value >> 30) * MIX_FIRST & MASK
    value = (value ^ value >> 27) * MIX_SECOND & MASK
    return value ^ value >> 31


def mix_array(values: np.ndarray) -> np.ndarray:
    """`mix` of each element of a uint64 array."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(MIX_FIRST)
    values = (values ^ values >> np.uint64(27)) * np.uint64(MIX_SECOND)
    mixed: np.ndarray = values ^ values >> np.uint64(31)
    return mixed


def _draw(first: int, count: int) -> np.ndarray:
    indices = np.arange(first, first + count, dtype=np.uint64)
    keys: np.ndarray = mix_array(np.uint64(SEED) + indices * np.uint64(GAMMA)) | np.uint64(1)
    return keys


def _powers(base: int, count: int) -> np.ndarray:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    powers: np.ndarray = np.multiply.accumulate(factors)
    return powers


@lru_cache(maxsize=1)
def column_keys() -> np.ndarray:
    """Uint64 ``[2, TILE_WORDS]``: lane 0 ``BASE^i``, lane 1 drawn; all odd."""
    return np.stack([_powers(BASE, TILE_WORDS), _draw(0, TILE_WORDS)])


@lru_cache(maxsize=8)
def row_keys(num_rows: int) -> np.ndarray:
    """Uint64 ``[2, num_rows]``: lane 0 ``BASE^(TILE_WORDS t)``, lane 1 drawn; all odd."""
    step = pow(BASE, TILE_WORDS, 1 << 64)
    return np.stack([_powers(step, num_rows), _draw(TILE_WORDS, num_rows)])
