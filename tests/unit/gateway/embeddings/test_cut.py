import struct

import pytest

from pagoda_gateway.embeddings.serializer import cut


@pytest.mark.parametrize(
    ("num", "expected"), [(1, [1]), (2, [0.6, 0.8]), (4, [0.3, 0.4, 0, -(0.75**0.5)])]
)
def test_what_is_cut_has_length_1_again(num: int, expected: list[float]) -> None:
    embedding = struct.pack("<4f", 0.3, 0.4, 0.0, -(0.75**0.5))
    found = struct.unpack(f"<{num}f", cut(embedding, num))
    assert found == pytest.approx(expected, abs=1e-6)


def test_nothing_but_zeros_stays() -> None:
    assert cut(struct.pack("<3f", 0, 0, 1), 2) == bytes(8)
