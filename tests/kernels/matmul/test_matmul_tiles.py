"""Tiles of few rows: what they read again, beside what they read once."""

import pytest
import torch

from pagoda_kernels.matmul.triton.matmul_tiles import byte_weight_tile, nibble_weight_tile
from pagoda_kernels.triton import launch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(launch, "capability", lambda _: 90)


@pytest.mark.parametrize("num_rows", [1, 16, 17, 32, 33, 64])
@pytest.mark.parametrize(("element_bytes", "most"), [(1, 0.5), (2, 1.0)])
def test_bytes_of_x_beside_those_of_the_weight(num_rows, element_bytes, most):
    tile = byte_weight_tile(num_rows, element_bytes, CPU)
    assert tile.block_m >= num_rows
    assert tile.block_m * element_bytes <= most * tile.block_n


@pytest.mark.parametrize("num_rows", [1, 16, 17, 32, 33, 64])
def test_nibbles_are_read_in_tiles_of_128_rows(num_rows):
    tile = nibble_weight_tile(num_rows, 2, 128, CPU)
    assert tile.block_m >= num_rows
    assert tile.block_n == 128
