"""How right proposals are is measured whether they are verified or not."""

from collections.abc import Sequence

import pytest

from pagoda_engine.speculation import Guesses
from pagoda_engine.speculation.acceptance import FIRST_ACCEPTANCE, RATE
from pagoda_engine.speculation.guesses import MAX_RESTS, MAX_RESTS_ALONE


class Says:
    """Proposes what it was told to."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()

    def propose(self, max_tokens: int) -> Sequence[int]:
        return self.tokens[:max_tokens]


def watched(proposed: Sequence[int], come: Sequence[int], *, counts_none: bool = False) -> float:
    """Return the share of right ones after these tokens have come at once."""
    tokens, proposer = [1], Says()
    guesses = Guesses(tokens, proposer)
    proposer.tokens = proposed
    assert list(guesses.look(4)) == list(proposed)
    tokens += come
    guesses.look(4, counts_none=counts_none)
    return guesses.acceptance


def after(*rights: bool) -> float:
    share = FIRST_ACCEPTANCE
    for is_right in rights:
        share += RATE * (is_right - share)
    return share


@pytest.mark.parametrize(
    ("proposed", "come", "rights"),
    [
        ([2, 3, 4], [2], [True]),
        ([2, 3, 4], [9], [False]),
        ([2, 3, 4], [2, 3, 9], [True, True, False]),
        ([2, 3, 4], [9, 3, 4], [False]),
        ([2], [2, 3, 4], [True]),
        ([], [2, 3], []),
        ([2, 3], [], []),
    ],
)
def test_proposals_are_compared_up_to_the_first_wrong_one(
    proposed: list[int], come: list[int], rights: list[bool]
) -> None:
    assert watched(proposed, come) == pytest.approx(after(*rights))


def test_nothing_proposed_is_wrong_where_that_costs_a_step() -> None:
    assert watched([], [2], counts_none=True) == pytest.approx(after(False))


@pytest.mark.parametrize(("least", "num"), [(0.9, 0), (0.5, 0), (0.49, 1), (0.25, 2), (0.1, 3)])
def test_as_many_are_worth_it_as_are_likely_together(least: float, num: int) -> None:
    guesses = Guesses([], Says())
    assert guesses.acceptance == 0.5
    assert guesses.num_likely(least) == num


def test_extremes() -> None:
    guesses = Guesses([], Says())
    guesses.acceptance = 1.0
    assert guesses.num_likely(0.99) > 1000
    assert guesses.num_expected(7) == 7
    guesses.acceptance = 0.0
    assert guesses.num_likely(0.01) == 0
    assert guesses.num_expected(7) == 0
    guesses.acceptance = 0.5
    assert guesses.num_expected(3) == pytest.approx(0.5 + 0.25 + 0.125)


def test_who_looks_in_vain_looks_less_often() -> None:
    guesses = Guesses([], Says())
    rests = []
    for _ in range(6):
        guesses.rest(5, is_useful=False)
        rests.append(guesses.looks_at - 6)
    assert rests == [1, 2, 4, 8, MAX_RESTS, MAX_RESTS]
    guesses.rest(5, is_useful=False, most=MAX_RESTS_ALONE)
    guesses.rest(5, is_useful=False, most=MAX_RESTS_ALONE)
    assert guesses.looks_at == 6 + 2 * MAX_RESTS
    guesses.rest(5, is_useful=False, most=MAX_RESTS)
    assert guesses.looks_at == 6 + MAX_RESTS, "somebody has joined it"
    guesses.rest(5, is_useful=True)
    assert guesses.looks_at == 6
