"""Small host arrays packed into one copy."""

import numpy as np
import pytest
import torch

from pagoda_kernels.host_copy import ALIGNMENT_BYTES, packed_bytes, to_device, views

ARRAYS = (
    np.arange(5, dtype=np.int32),
    np.zeros((0, 3), dtype=np.int64),
    np.arange(6, dtype=np.int64).reshape(2, 3),
    np.array([1.5, -2.0], dtype=np.float32),
)


def test_views_are_the_arrays_and_aligned():
    packed = packed_bytes(ARRAYS, is_pinned=False)
    for tensor, array in zip(views(packed, ARRAYS), ARRAYS, strict=True):
        assert torch.equal(tensor, torch.from_numpy(array))
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert (tensor.data_ptr() - packed.data_ptr()) % ALIGNMENT_BYTES == 0


def test_on_the_cpu_nothing_is_copied():
    (tensor,) = to_device(ARRAYS[:1], torch.device("cpu"))
    assert tensor.data_ptr() == ARRAYS[0].ctypes.data


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_allocation_on_the_device():
    tensors = to_device(ARRAYS, torch.device("cuda"))
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    for tensor, array in zip(tensors, ARRAYS, strict=True):
        assert torch.equal(tensor.cpu(), torch.from_numpy(array))
