import gc
import resource

import pytest
import torch

from pagoda_kernels.huge_pages import MIN_BYTES, huge_zeros


@pytest.mark.parametrize("num_bytes", [0, 5, MIN_BYTES - 1, MIN_BYTES, 3 * MIN_BYTES + 77])
def test_zeros_that_can_be_written(num_bytes: int) -> None:
    zeros = huge_zeros(num_bytes)
    assert (zeros.shape, zeros.dtype) == ((num_bytes,), torch.uint8)
    assert not zeros.any()
    zeros.fill_(7)
    assert int(zeros.sum(dtype=torch.int64)) == 7 * num_bytes


def test_memory_is_given_back() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()

    before, num_bytes = resident_bytes(), 64 << 20
    part = huge_zeros(num_bytes).fill_(1)[-8:].view(torch.int64)
    assert resident_bytes() > before + num_bytes // 2  # a view keeps all of it
    del part
    gc.collect()
    assert resident_bytes() < before + num_bytes // 2
