"""A KV pool's share of the host's memory, and what goes back to the host."""

import ctypes

MIN_POOL_BYTES = 256 * 2**20
POOL_SHARE = 1 / 8
"""Of the memory left beside the weights: other workers, stores and the page cache want theirs."""
SCARCE_SHARE = 1 / 4
"""Of that, too: where MIN_POOL_BYTES would be more."""


def default_pool_bytes(sequence_bytes: int, weight_bytes: int, available_bytes: int | None) -> int:
    """Return the size of a pool on a CPU that nobody set.

    One longest sequence fits if an eighth of the memory beside the weights suffices for it; never
    less than 256 MiB, or where memory is scarce than a quarter of it, or that sequence.

    Args:
        sequence_bytes: KV of the longest sequence.
        weight_bytes: of the model, not loaded yet.
        available_bytes: what the process may take; None: unknown.
    """
    if available_bytes is None:
        return MIN_POOL_BYTES
    left = max(0, available_bytes - weight_bytes)
    least = max(min(sequence_bytes, MIN_POOL_BYTES), int(left * SCARCE_SHARE))
    return max(min(MIN_POOL_BYTES, least), min(sequence_bytes, int(left * POOL_SHARE)))


def give_back_freed() -> None:
    """Give the system what this process has freed: between what lives on, malloc keeps it.

    After weights are packed that is up to a quarter of their size. glibc only.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
