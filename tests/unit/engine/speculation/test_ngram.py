"""What the n-gram proposer finds, beside a search through all tokens."""

import random

import pytest

from pagoda_engine.speculation import NgramProposer
from pagoda_engine.speculation.ngram import LONG, MAX_TABLE_BITS, MIN_MANY, SHORT


def proposed(tokens: list[int], max_tokens: int = 4) -> list[int]:
    return list(NgramProposer(tokens, 1000).propose(max_tokens))


def test_what_followed_the_last_time_is_proposed() -> None:
    assert proposed([7, 8, 1, 2, 3, 4, 9, 9, 7, 8]) == [1, 2, 3, 4]


def test_nothing_that_has_not_been_there_is_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5, 6]) == []
    assert proposed([1]) == []
    assert proposed([]) == []


def test_the_longest_suffix_decides() -> None:
    assert proposed([5, 6, 7, 8, 1, 1, 3, 7, 8, 2, 2, 5, 6, 7, 8], 2) == [1, 1]


def test_of_equal_suffixes_the_latest_decides() -> None:
    assert proposed([7, 8, 1, 1, 7, 8, 2, 2, 7, 8], 2) == [2, 2]


def test_a_loop_goes_on() -> None:
    assert proposed([1, 2, 3, 1, 2, 3, 1], 7) == [2, 3, 1, 2, 3, 1, 2]
    assert proposed([4, 4, 4], 3) == [4, 4, 4]


def test_a_place_that_goes_on_being_right_is_kept() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 5, 6, 8, 1, 2, 3, 4]
    proposer = NgramProposer(tokens, 100)
    assert list(proposer.propose(2)) == [5, 6]
    tokens += [5, 6]
    assert list(proposer.propose(2)) == [9, 5], "the later place behind 5, 6 says 8"


@pytest.mark.parametrize("number", range(20))
def test_what_is_found_has_been_there(seed: int, number: int) -> None:
    """However many tokens come at once: what is proposed followed the same tokens before."""
    rng = random.Random(seed + number)
    vocabulary = rng.choice([2, 5, 40])
    tokens = [rng.randrange(vocabulary) for _ in range(rng.choice([0, 3, MIN_MANY, 300]))]
    proposer = NgramProposer(tokens, 1000)
    num_found = num_missed = 0
    for _ in range(100):
        found = list(proposer.propose(3))
        if found:
            num_found += 1
            assert len(found) == 3
            assert ends_before(tokens, found[0])
        else:
            # Where two n-grams have one entry the older one is lost.
            num_missed += any(ends_before(tokens, token) for token in range(vocabulary))
        num_new = rng.choice([0, 1, 1, 2, 9, MIN_MANY])
        new = found if found and rng.random() < 0.5 else []
        tokens += new or [rng.randrange(vocabulary) for _ in range(num_new)]
        if len(tokens) > 600:
            break
    assert num_missed <= 2 + num_found // 4


def ends_before(tokens: list[int], follower: int) -> bool:
    """Whether the last two tokens have had this one behind them."""
    wanted = [*tokens[-SHORT:], follower]
    return any(tokens[i : i + len(wanted)] == wanted for i in range(len(tokens) - len(wanted) + 1))


@pytest.mark.parametrize("at_once", [True, False])
def test_one_by_one_and_all_at_once_find_the_same(seed: int, at_once: bool) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(300) for _ in range(MIN_MANY + 30)]
    tokens += tokens[10 : 10 + LONG]
    proposer = NgramProposer(tokens if at_once else (some := tokens[:1]), 1000)
    if not at_once:
        for token in tokens[1:]:
            proposer.propose(1)
            some.append(token)
    assert list(proposer.propose(5)) == tokens[10 + LONG : 15 + LONG]


def test_memory_is_bounded() -> None:
    proposer = NgramProposer([], 1_000_000)
    assert len(proposer._long) == len(proposer._short) == 2**MAX_TABLE_BITS
    assert len(NgramProposer([], 20)._long) <= 64


def test_a_long_sequence_still_finds_what_is_recent() -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(30_000) for _ in range(100_000)]
    tokens += [*range(100), 5, 6, 7]
    assert proposed(tokens, 3) == [8, 9, 10]
