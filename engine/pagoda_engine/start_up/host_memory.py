"""The host's memory: what this process may still take of it, and a KV pool's share of that.

Linux only; elsewhere nothing is known. Knows numbers and the kernel's files.
"""

import ctypes
from pathlib import Path

from pagoda_formats.control_groups import CGROUP, PROC, memory_left

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


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return what the host and this process's control groups have left; None: unknown."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None
    left = memory_left(proc, cgroup)
    return available if left is None else min(available, left)


def give_back_freed() -> None:
    """Give the system what this process has freed: between what lives on, malloc keeps it.

    After weights are packed that is up to a quarter of their size. glibc only.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
