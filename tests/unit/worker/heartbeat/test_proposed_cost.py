"""What a proposed token adds, beside few sequences and beside many."""

import math

import pytest

from pagoda_worker.heartbeat.proposed_cost import ProposedCost


def train(
    cost: ProposedCost, num_sequences: int, num_proposed: int, per_token: float, num: int = 60
) -> None:
    """Steps that take a fifth longer than predicted, and per_token for each proposed one."""
    for i in range(num):
        proposed = num_proposed if i % 2 else 0
        seconds = 1.2 * num_sequences + per_token * proposed
        cost.add(num_sequences, proposed, seconds=seconds, predicted=float(num_sequences))


def test_nothing_measured_says_nothing() -> None:
    assert ProposedCost().by_batch(0.5) == ()


def test_each_size_of_batch_has_its_own() -> None:
    cost = ProposedCost()
    train(cost, 1, 7, 0.05)
    train(cost, 6, 20, 0.4)
    alone, pairs, few = cost.by_batch(0.2)
    assert alone == pytest.approx(0.05, abs=0.02)
    assert pairs == math.inf, "nobody knows what such steps take alone"
    assert few == pytest.approx(0.4, rel=0.1)


def test_the_line_counts_until_something_was_proposed() -> None:
    cost = ProposedCost()
    for _ in range(10):
        cost.add(1, 0, seconds=1.2, predicted=1.0)
    assert cost.by_batch(0.2) == (pytest.approx(0.2),)


def test_who_was_too_dear_is_tried_again_some_time() -> None:
    cost = ProposedCost()
    train(cost, 1, 7, 5.0)
    before = cost.by_batch(0.1)[0]
    for _ in range(5000):
        cost.add(1, 0, seconds=1.2, predicted=1.0)
    assert before > 4.0
    assert cost.by_batch(0.1)[0] < 0.2


def test_a_line_that_says_they_are_dear_is_forgotten_too() -> None:
    cost = ProposedCost()
    assert cost.line(5.0, 0.1) == pytest.approx(0.1), "nothing was measured"
    train(cost, 1, 7, 5.0)
    assert cost.line(5.0, 0.1) > 4.0
    for _ in range(5000):
        cost.add(1, 0, seconds=1.2, predicted=1.0)
    assert cost.line(5.0, 0.1) < 0.2


def test_a_token_takes_no_less_than_nothing() -> None:
    cost = ProposedCost()
    train(cost, 1, 7, -0.1)
    assert cost.by_batch(0.01)[0] == 0.0
