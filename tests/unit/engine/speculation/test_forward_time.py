"""What is learned of a small model's forwards from those that were timed."""

import math
import random

import pytest

from pagoda_engine.speculation import ForwardTime


def test_nothing_is_known_at_first() -> None:
    assert ForwardTime().of(9) == 0.0


def test_a_line_is_found() -> None:
    time = ForwardTime()
    for num_tokens in (1, 64, 1, 16, 3):
        time.add(num_tokens, 1e-4 + 2e-6 * num_tokens)
    assert time.base == pytest.approx(1e-4)
    assert time.per_token == pytest.approx(2e-6)
    assert time.of(10) == pytest.approx(1.2e-4)


def test_neither_part_is_negative() -> None:
    rng = random.Random(1)
    time = ForwardTime()
    for _ in range(200):
        time.add(rng.randint(1, 60), rng.uniform(1e-5, 1e-3))
        assert time.base >= 0.0
        assert time.per_token >= 0.0


def test_what_was_disturbed_weighs_little() -> None:
    time = ForwardTime()
    for i in range(40):
        time.add(1 + i % 4, 1e-2 if i % 20 == 19 else 1e-4)
    assert time.of(2) < 1.2e-4


def test_forwards_of_as_many_tokens_again_and_again_leave_the_slope() -> None:
    time = ForwardTime()
    for num_tokens in (1, 64):
        time.add(num_tokens, 1e-4 + 2e-6 * num_tokens, is_first=True)
    for _ in range(5000):
        time.add(4, 1.08e-4)
    assert time.per_token == pytest.approx(2e-6, rel=0.05)


def test_what_takes_no_time_says_nothing() -> None:
    time = ForwardTime()
    time.add(5, 0.0)
    assert time.of(5) == 0.0


def test_a_forward_s_time_has_its_tokens(seed: int) -> None:
    """Whatever is rounded: else who has saved up for a chunk would never get it."""
    rng = random.Random(seed)
    for _ in range(1000):
        time = ForwardTime()
        time.base, time.per_token = rng.uniform(0.0, 1e-2), rng.uniform(1e-7, 1e-3)
        num_tokens = rng.randrange(1, 600)
        assert time.tokens_within(time.of(num_tokens)) == num_tokens
        assert time.tokens_within(time.of(num_tokens) - 0.1 * time.per_token) == num_tokens - 1
    time.per_token = 0.0
    assert time.tokens_within(1.0) == math.inf
