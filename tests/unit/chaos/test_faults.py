"""Damage done to segment files."""

import random
from pathlib import Path

from chaos.faults import BYTES_PER_FLIP, MIN_SEGMENT_BYTES, flip_bytes


def test_segments_are_damaged_and_small_files_are_not(tmp_path: Path) -> None:
    size = 3 * BYTES_PER_FLIP
    (tmp_path / "segment").write_bytes(bytes(size))
    (tmp_path / "lock").write_bytes(bytes(MIN_SEGMENT_BYTES - 1))
    assert flip_bytes(tmp_path, random.Random(1)) == (3, 1)
    damaged = (tmp_path / "segment").read_bytes()
    assert len(damaged) == size
    assert size - damaged.count(0) == 3
    assert not any((tmp_path / "lock").read_bytes())
