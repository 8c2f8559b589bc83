import numpy as np
import pytest

from pagoda.engine.sampling.philox import UniformSource, philox4x32, uniforms

# Known answers of philox4x32 with 10 rounds from the Random123 library: counter, key, output.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    counters = np.array([counter, counter], dtype=np.uint64)
    assert philox4x32(counters, key).tolist() == [list(words)] * 2


def test_uniforms_use_the_two_first_words_of_the_index() -> None:
    words = philox4x32(np.array([[7, 0, 0, 0]], dtype=np.uint64), (5, 1))[0].tolist()
    expected = ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53
    assert uniforms(2**32 + 5, 7, 1).tolist() == [expected]


def test_uniforms_depend_on_index_and_seed_alone() -> None:
    run = uniforms(3, 0, 100)
    assert uniforms(3, 40, 10).tolist() == run[40:50].tolist()
    assert uniforms(4, 40, 10).tolist() != run[40:50].tolist()


def test_seeds_that_differ_in_high_bits_differ() -> None:
    assert uniforms(1, 0, 1)[0] != uniforms(1 + 2**63, 0, 1)[0]


def test_uniforms_are_uniform() -> None:
    values = uniforms(12345, 0, 100_000)
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    chi_squared = float(((counts - 5000) ** 2 / 5000).sum())
    assert chi_squared < 43.8  # 19 degrees of freedom, p = 0.001


def test_neighbouring_indices_are_uncorrelated() -> None:
    values = uniforms(99, 0, 50_000)
    assert abs(float(np.corrcoef(values[:-1], values[1:])[0, 1])) < 0.02


def test_source_answers_in_any_order() -> None:
    source = UniformSource(8)
    expected = uniforms(8, 0, 300).tolist()
    for index in (0, 63, 64, 299, 5, 128):
        assert source.at(index) == expected[index]
