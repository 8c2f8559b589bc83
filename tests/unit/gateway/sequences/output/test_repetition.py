"""An output that says the same again and again, beside the definition."""

import random

import pytest

from pagoda_gateway.sequences.output.repetition import Repetition


@pytest.mark.parametrize(
    ("ids", "rule", "expected"),
    [
        ([1, 1], Repetition(1, 1, 2), True),
        ([1], Repetition(1, 1, 2), False),
        ([], Repetition(1, 4, 2), False),
        ([2, 1, 2, 1], Repetition(1, 2, 2), True),
        ([2, 1, 2, 1], Repetition(3, 4, 2), False),
        ([1, 2, 1, 2, 3], Repetition(1, 4, 2), False),
        ([9, 1, 2, 1, 2, 1, 2], Repetition(2, 2, 3), True),
        ([9, 1, 2, 1, 2, 1, 2], Repetition(2, 2, 4), False),
    ],
)
def test_ends(ids: list[int], rule: Repetition, expected: bool) -> None:
    assert rule.ends(ids) is expected


def test_random_outputs_as_the_definition_has_it() -> None:
    rng, num_seen = random.Random(7), 0
    for _ in range(2000):
        ids = [rng.randrange(2) for _ in range(rng.randrange(14))]
        rule = Repetition(rng.randint(1, 2), rng.randint(2, 4), rng.randint(2, 4))
        expected = any(
            len(ids) >= size * rule.min_count
            and ids[len(ids) - size * rule.min_count :] == ids[len(ids) - size :] * rule.min_count
            for size in range(rule.min_size, rule.max_size + 1)
        )
        assert rule.ends(ids) is expected, (ids, rule)
        num_seen += expected
    assert num_seen > 100
