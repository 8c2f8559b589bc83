import gc
import itertools
import resource

import pytest
import torch

from pagoda_kernels.huge_pages import MIN_BYTES, REGION_BYTES, huge_zeros

SIZES = [0, 5, MIN_BYTES - 1, MIN_BYTES, 3 * MIN_BYTES + 77, REGION_BYTES // 4, REGION_BYTES]


@pytest.mark.parametrize("num_bytes", SIZES)
def test_zeros_that_can_be_written(num_bytes: int) -> None:
    zeros = huge_zeros(num_bytes)
    assert (zeros.shape, zeros.dtype) == ((num_bytes,), torch.uint8)
    assert not zeros.any()
    zeros.fill_(7)
    assert int(zeros.sum(dtype=torch.int64)) == 7 * num_bytes


def test_small_ones_share_a_region_and_nothing_else() -> None:
    num_bytes = REGION_BYTES // 5 - 1
    parts = [huge_zeros(num_bytes).fill_(i) for i in range(7)]
    assert [int(part.max()) for part in parts] == [int(part.min()) for part in parts] == [*range(7)]
    starts = sorted(part.data_ptr() for part in parts)
    assert sum(b - a < num_bytes + 4096 for a, b in itertools.pairwise(starts)) >= 4


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_a_region_is_given_back_with_its_parts() -> None:
    before = resident_bytes()
    parts = [huge_zeros(REGION_BYTES // 4).fill_(1) for _ in range(16)]
    assert resident_bytes() > before + 3 * REGION_BYTES
    del parts
    gc.collect()
    assert resident_bytes() < before + REGION_BYTES


def test_memory_is_given_back() -> None:
    before, num_bytes = resident_bytes(), 64 << 20
    part = huge_zeros(num_bytes).fill_(1)[-8:].view(torch.int64)
    assert resident_bytes() > before + num_bytes // 2  # a view keeps all of it
    del part
    gc.collect()
    assert resident_bytes() < before + num_bytes // 2
