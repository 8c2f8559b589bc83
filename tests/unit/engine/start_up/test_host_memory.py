from pathlib import Path

import pytest
import torch

from pagoda_engine.start_up.host_memory import default_pool_bytes, give_back_freed

GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(
    ("sequence_bytes", "weight_bytes", "available", "wanted"),
    [
        (16 * GIB, 15 * GIB, 143 * GIB, 16 * GIB),  # it fits
        (16 * GIB, 15 * GIB, 31 * GIB, 2 * GIB),  # the share alone
        (16 * GIB, 15 * GIB, 15 * GIB, 256 * MIB),
        (16 * GIB, 15 * GIB, 1 * GIB, 256 * MIB),
        (1 * MIB, 1 * MIB, 64 * GIB, 256 * MIB),  # a small model
        (1 * MIB, 40 * MIB, 240 * MIB, 50 * MIB),  # a small container
        (80 * MIB, 40 * MIB, 240 * MIB, 80 * MIB),
        (1 * MIB, 40 * MIB, 30 * MIB, 1 * MIB),
        (16 * GIB, 15 * GIB, None, 256 * MIB),
    ],
)
def test_a_pool_holds_the_longest_sequence_within_an_eighth_of_the_memory(
    sequence_bytes: int, weight_bytes: int, available: int | None, wanted: int
) -> None:
    assert default_pool_bytes(sequence_bytes, weight_bytes, available) == wanted


def test_what_was_freed_between_what_lives_on_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    tensors = [
        torch.ones(1 << 16, dtype=torch.uint8) for _ in range(2000)
    ]  # malloc's own: not mapped
    kept = [*tensors[::100], tensors[-1]]
    del tensors
    before = resident()
    give_back_freed()
    assert before - resident() > 100 * MIB
    assert all(bool(tensor.all()) for tensor in kept)
