"""Several small host arrays to the device in one copy that nobody waits for.

Knows bytes and alignment. Knows nothing of what the arrays mean.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT_BYTES = 16
"""Every array starts at a multiple of this, as kernels are compiled for."""

Array = npt.NDArray[np.generic]


def to_device(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Return each array as a tensor on `device`; on CPU it shares the array's memory.

    On CUDA all are views of one allocation. The host memory is pinned and kept by torch until the
    copy is done, so the caller may drop or change the arrays at once.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed = packed_bytes(arrays, is_pinned=True).to(device, non_blocking=True)
    return views(packed, arrays)


def packed_bytes(arrays: Sequence[Array], *, is_pinned: bool) -> torch.Tensor:
    """Return uint8 on the host that holds all arrays, each at an aligned offset."""
    offsets = _offsets(arrays)
    packed = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=is_pinned)
    host = packed.numpy()
    for array, offset in zip(arrays, offsets[:-1], strict=True):
        host[offset : offset + array.nbytes].view(array.dtype)[:] = array.ravel()
    return packed


def views(packed: torch.Tensor, arrays: Sequence[Array]) -> list[torch.Tensor]:
    """Return views of `packed` where `packed_bytes` put each of these arrays."""
    tensors = []
    for array, offset in zip(arrays, _offsets(arrays)[:-1], strict=True):
        dtype = torch.from_numpy(array[:0]).dtype
        tensors.append(packed[offset : offset + array.nbytes].view(dtype).view(array.shape))
    return tensors


def _offsets(arrays: Sequence[Array]) -> list[int]:
    """Where each array starts, and the size of all."""
    offsets = [0]
    for array in arrays:
        padded = -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offsets.append(offsets[-1] + padded)
    return offsets
