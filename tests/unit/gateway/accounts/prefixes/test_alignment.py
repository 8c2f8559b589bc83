"""Prompts beside each other, against a plain oracle."""

import difflib
import itertools
import random

import numpy as np
import pytest

from pagoda_gateway.accounts.prefixes.alignment import MAX_TOKENS, align, num_equal
from pagoda_gateway.accounts.prefixes.sketch import GRAM_TOKENS, Tokens, sketch


def tokens(values: list[int]) -> Tokens:
    return np.asarray(values, np.uint32)


def drawn(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(1 << 17) for _ in range(num)]


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2), ([1, 2], [3, 2], 0)],
)
def test_equal_beginnings(earlier: list[int], later: list[int], expected: int) -> None:
    assert num_equal(tokens(earlier), tokens(later)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_edits_are_found_as_difflib_finds_them(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    earlier = drawn(rng, 400)
    later = list(earlier)
    for _ in range(rng.randint(1, 4)):  # apart, so that equal runs are longer than a gram
        at = rng.randrange(8) * 45 + 20
        later[at : at + rng.randrange(5)] = drawn(rng, rng.randrange(1, 5))
    found = align(tokens(earlier), tokens(later))
    matcher = difflib.SequenceMatcher(None, earlier, later, autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size >= GRAM_TOKENS]
    assert found.first == num_equal(tokens(earlier), tokens(later))
    after = [block for block in blocks if block.b >= found.first]
    assert found.num_equal_after == sum(block.size for block in after)
    assert (found.earlier_end, found.later_end) == (after[0].a, after[0].b)


def test_what_a_template_repeats_does_not_lead_astray() -> None:
    rng = random.Random(1)
    between = drawn(rng, 12)  # behind each turn, longer than a gram
    turns = [drawn(rng, 60) + between for _ in range(5)]
    system = drawn(rng, 50)
    earlier = tokens(system + list(itertools.chain(*turns)))
    later = tokens(system + list(itertools.chain(*turns[2:])))  # the oldest turns are dropped
    found = align(earlier, later)
    assert (found.first, found.earlier_end, found.later_end) == (50, 50 + 2 * 72, 50)
    assert (found.num_equal_after, found.num_changed) == (3 * 72, 0)


def test_a_changed_value_counts_and_another_text_does_not() -> None:
    rng = random.Random(4)
    system, documents = drawn(rng, 50), [drawn(rng, 200) for _ in range(2)]
    pair = [
        [*drawn(rng, num), *system, *text, *system]
        for num, text in zip((3, 5), documents, strict=True)
    ]
    found = align(*map(tokens, pair))
    assert (found.num_equal_after, found.num_changed) == (100, 3)


def test_nothing_is_equal_again() -> None:
    rng = random.Random(2)
    found = align(tokens(drawn(rng, 100)), tokens(drawn(rng, 90)))
    assert (found.first, found.earlier_end, found.later_end, found.num_equal_after) == (
        0, 100, 90, 0,
    )  # fmt: skip


def test_the_longest_prompts_are_cut() -> None:
    earlier = np.arange(MAX_TOKENS + 100, dtype=np.uint32)
    later = earlier.copy()
    later[0] = 7
    assert align(earlier, later).num_equal_after == MAX_TOKENS - 1


def test_sketches_of_alike_prompts_share_numbers() -> None:
    rng = random.Random(3)
    system = drawn(rng, 300)
    one = sketch(tokens([*drawn(rng, 4), *system, *drawn(rng, 300)]))
    other = sketch(tokens([*drawn(rng, 6), *system, *drawn(rng, 300)]))
    stranger = sketch(tokens(drawn(rng, 600)))
    assert len(set(one) & set(other)) >= 8
    assert not set(one) & set(stranger)
    assert sketch(tokens(system[: GRAM_TOKENS - 1])) == ()
