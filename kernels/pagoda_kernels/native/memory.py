"""Memory that a native call works in."""

import torch

LINE_BYTES = 64  # of a cache


def room_of(num_bytes: int) -> torch.Tensor:
    """Return ``[>= num_bytes]`` uint8 that begins where a line of the cache does; not set."""
    memory = torch.empty(num_bytes + LINE_BYTES, dtype=torch.uint8)
    return memory[-memory.data_ptr() % LINE_BYTES :]
