"""A few numbers that say which prompts are alike, wherever they differ."""

from typing import Any

import numpy as np
import numpy.typing as npt

GRAM_TOKENS = 8  # a power of two
NEAR_TOKENS, FAR_TOKENS = 256, 1024
NUM_OF_EACH = 16

Tokens = npt.NDArray[np.uint32]
Grams = npt.NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def gram_hashes(token_ids: Tokens) -> Grams:
    """Return a hash of the `GRAM_TOKENS` tokens from each index on; empty if there are fewer."""
    if len(token_ids) < GRAM_TOKENS:
        return np.empty(0, np.uint64)
    hashes = (token_ids.astype(np.uint64) + np.uint64(1)) * _FACTOR
    width = 1
    while width < GRAM_TOKENS:  # of 2 tokens from those of 1, of 4 from those of 2, ...
        joined = hashes[:-width] * _FACTOR
        joined += hashes[width:]
        joined ^= joined >> _SHIFT
        hashes, width = joined, 2 * width
    return hashes * _FACTOR


def sketch(token_ids: Tokens) -> tuple[int, ...]:
    """Return the least hashes of a prompt's beginning: those of the first 256 tokens, and beyond.

    Prompts that share a part of these tokens share about that part of the numbers.
    """
    hashes = gram_hashes(token_ids[:FAR_TOKENS])
    return tuple({*_least(hashes[:NEAR_TOKENS]), *_least(hashes[NEAR_TOKENS:])})


def _least(hashes: Grams) -> list[Any]:
    found = hashes
    if len(hashes) > NUM_OF_EACH:
        found = np.partition(hashes, NUM_OF_EACH)[:NUM_OF_EACH]
    return list(found.tolist())
