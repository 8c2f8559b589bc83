"""Counters of split matmuls: zero between launches, and shared by nobody who runs beside."""

import pytest
import torch

from pagoda_kernels import quantise_int8
from pagoda_kernels.matmul.triton import split_k
from pagoda_kernels.matmul.triton.int8_matmul import int8_matmul
from pagoda_kernels.matmul.triton.split_k import Counters, choose_num_splits, counters_on

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_every_launch_leaves_its_counters_at_zero():
    x = torch.randn(3, 512, device=DEVICE)
    weight = quantise_int8(torch.randn(64, 512, device=DEVICE))
    outs = [torch.full((3, 64), float("nan"), device=DEVICE) for _ in range(3)]
    for out in outs:
        int8_matmul(x, weight, out, num_splits=4)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert not counters_on(x.device)._pool.any()


@pytest.mark.parametrize(
    ("num_tiles", "num_steps", "tile_elements", "num_splits"),
    [
        (64, 112, 64 * 16, 4),
        (32, 112, 128 * 64, 5),  # one program for a processor
        (32, 8, 64 * 16, 2),  # no fewer than four steps
        (224, 32, 128 * 64, 1),
        (5000, 32, 64 * 16, 1),
    ],
)
def test_splits_fill_an_h200(monkeypatch, num_tiles, num_steps, tile_elements, num_splits):
    monkeypatch.setattr(split_k, "num_processors", lambda _: 132)
    assert choose_num_splits(num_tiles, num_steps, tile_elements, CPU) == num_splits


def test_streams_have_counters_of_their_own():
    counters = Counters(CPU)
    first, second = counters.of_stream(7), counters.of_stream(11)
    assert first.data_ptr() != second.data_ptr()
    assert counters.of_stream(7).data_ptr() == first.data_ptr()
    assert first.shape == (split_k.MAX_TILES,)


def test_says_how_many_streams_there_may_be():
    counters = Counters(CPU)
    for stream in range(split_k.MAX_STREAMS):
        counters.of_stream(stream)
    with pytest.raises(RuntimeError, match="split matmuls on 65 streams of a device: expected at"):
        counters.of_stream(99)


def test_counters_are_not_made_in_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="run the model once before the capture"):
        counters_on(torch.device("cuda", 99))
