"""Host memory in pages of 2 MiB, where the system has them.

What a step reads of weights and KV does not fit the processor's table of small pages; under a
hypervisor each miss is two walks, and hardware looks no further ahead than a page.
"""

import mmap
import threading
import weakref

import torch

MIN_BYTES = 1 << 16
"""Less than this is left to the allocator."""
REGION_BYTES = 32 << 20
"""Of memory that several share: a weight of a megabyte alone would hardly fill a page."""
_ALIGNMENT = 4096


def huge_zeros(num_bytes: int) -> torch.Tensor:
    """Return ``[num_bytes]`` uint8 zeros on the CPU; memory is taken as it is first written.

    What is small shares a region with what is asked for before and after it, and is given back
    with all of that.
    """
    if num_bytes < MIN_BYTES:
        return torch.zeros(num_bytes, dtype=torch.uint8)
    if num_bytes > REGION_BYTES // 4:
        return torch.frombuffer(_map(num_bytes), dtype=torch.uint8)
    return _shared.take(num_bytes)


class _Regions:
    """The region that is being filled; who got a part of it holds it, not this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._region: weakref.ref[mmap.mmap] | None = None
        self._num_taken = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        with self._lock:
            region = None if self._region is None else self._region()
            if region is None or self._num_taken + num_bytes > REGION_BYTES:
                region = _map(REGION_BYTES)
                self._region, self._num_taken = weakref.ref(region), 0
            first = self._num_taken
            self._num_taken += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return torch.frombuffer(region, dtype=torch.uint8, count=num_bytes, offset=first)


def _map(num_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


_shared = _Regions()
