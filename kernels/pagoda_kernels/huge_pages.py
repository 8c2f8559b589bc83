"""Host memory in pages of 2 MiB, where the system has them.

What a step reads of weights and KV does not fit the processor's table of small pages; under a
hypervisor each miss is two walks, and hardware looks no further ahead than a page.
"""

import mmap

import torch

MIN_BYTES = 4 << 20
"""Less than this is left to the allocator: it would hardly fill a page."""


def huge_zeros(num_bytes: int) -> torch.Tensor:
    """Return ``[num_bytes]`` uint8 zeros on the CPU; memory is taken as it is first written."""
    if num_bytes < MIN_BYTES:
        return torch.zeros(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
