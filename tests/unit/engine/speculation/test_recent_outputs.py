"""What a tenant's outputs said, beside a count of all of them."""

import random
from collections import Counter

import pytest

from pagoda_engine.speculation.recent_outputs import (
    CAPACITY,
    HEAD_TOKENS,
    NUM_BYTES,
    SUFFIXES,
    RecentOutputs,
)


def learned(*outputs: list[int], prompt: tuple[int, ...] = ()) -> RecentOutputs:
    recent = RecentOutputs()
    for output in outputs:
        recent.add(prompt, output)
    return recent


def test_what_followed_is_proposed_to_its_end() -> None:
    recent = learned([1, 2, 3, 4, 5, 6, 7, 8])
    assert recent.continuation([9, 1, 2, 3, 4], 3) == ([5, 6, 7], 4)
    assert recent.continuation([1, 2, 3, 4], 9) == ([5, 6, 7, 8], 4), "there is no more"
    assert recent.continuation([5, 6, 7, 8], 3) == ([], 0)


def test_nothing_is_known_of_what_was_never_said() -> None:
    recent = learned([1, 2, 3, 4, 5])
    assert recent.continuation([7, 7, 7, 7, 7], 3) == ([], 0)
    assert recent.continuation([4], 3) == ([], 0)
    assert RecentOutputs().continuation([1, 2, 3], 3) == ([], 0)


def test_what_followed_most_times_decides_not_what_came_last() -> None:
    often, once = [1, 2, 3, 4, 5, 5, 5], [1, 2, 3, 4, 6, 6, 6]
    recent = learned(often, often, once)
    assert recent.continuation([1, 2, 3, 4], 2) == ([5, 5], 4)
    for _ in range(3):
        recent.add((), once)
    assert recent.continuation([1, 2, 3, 4], 2) == ([6, 6], 4), "and it is not for ever"


def test_the_longest_suffix_decides() -> None:
    recent = learned([1, 2, 3, 4, 9], [1, 2, 3, 4, 9], [7, 7, 7, 7, 1, 2, 3, 4, 8])
    assert recent.continuation([1, 2, 3, 4], 1) == ([9], 4)
    assert recent.continuation([7, 7, 7, 7, 1, 2, 3, 4], 1) == ([8], 8)


def test_what_follows_no_longer_suffix_than_another_proposal_is_not_found() -> None:
    recent = learned([7, 7, 7, 7, 1, 2, 3, 4, 8])
    assert recent.continuation([1, 2, 3, 4], 1, longer_than=3) == ([8], 4)
    assert recent.continuation([1, 2, 3, 4], 1, longer_than=4) == ([], 0)
    assert recent.continuation([7, 7, 7, 7, 1, 2, 3, 4], 1, longer_than=4) == ([8], 8)
    assert recent.continuation([7, 7, 7, 7, 1, 2, 3, 4], 1, longer_than=8) == ([], 0)


def test_two_tokens_say_something_only_if_they_went_on_alike_before() -> None:
    recent = learned([1, 2, 3, 4, 5])
    assert recent.continuation([9, 9, 1, 2], 1) == ([], 0)
    recent.add((), [8, 8, 1, 2, 3])
    assert recent.continuation([9, 9, 1, 2], 1) == ([3], 2)


def test_a_proposal_may_be_of_several_outputs() -> None:
    recent = learned([1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8])
    assert recent.continuation([1, 2, 3, 4], 4) == ([5, 6, 7, 8], 4)


def test_an_output_does_not_go_on_in_the_next_one() -> None:
    recent = learned([1, 2, 3, 4], [5, 6, 7, 8])
    assert recent.continuation([1, 2, 3, 4], 2) == ([], 0)
    assert recent.continuation([3, 4, 5, 6], 2) == ([], 0), "two that went on once"


def test_the_beginning_is_foreseen_by_the_prompts_end() -> None:
    recent = learned([50, 51, 52, 53], prompt=tuple(range(20)))
    assert recent.continuation([99, *range(20 - HEAD_TOKENS, 20)], 2) == ([50, 51], HEAD_TOKENS)
    assert recent.continuation(list(range(10)), 2) == ([], 0), "a prompt itself is not learned"


def test_memory_is_bounded_and_holds_the_latest() -> None:
    rng = random.Random(1)
    recent = RecentOutputs()
    outputs = [[rng.randrange(30_000) for _ in range(700)] for _ in range(100)]
    for output in outputs:
        recent.add((1, 2, 3), output)
    arrays = [recent._tokens, *recent._places, *recent._votes]
    assert sum(a.itemsize * len(a) for a in arrays) == NUM_BYTES
    assert recent._num_tokens <= CAPACITY
    for output in outputs[-10:]:
        found = [recent.continuation(output[:i], 1)[0] == output[i : i + 1] for i in range(8, 700)]
        assert sum(found) > 0.9 * len(found)
    assert recent.continuation(outputs[0][:20], 3) == ([], 0), "long forgotten"


def test_of_an_output_that_is_too_long_the_end_is_kept() -> None:
    tokens = [i % 30_000 for i in range(3 * CAPACITY)]
    recent = learned(tokens)
    assert recent.continuation(tokens[-20:-10], 5)[0] == tokens[-10:-5]
    assert recent.continuation(tokens[:20], 5)[0] == []


@pytest.mark.parametrize("number", range(10))
def test_what_is_found_has_been_there_and_is_mostly_the_commonest(seed: int, number: int) -> None:
    rng = random.Random(seed + number)
    vocabulary = rng.choice([3, 12, 200])
    recent, kept = RecentOutputs(), list[list[int]]()
    phrases = [[rng.randrange(vocabulary) for _ in range(6)] for _ in range(5)]
    num_found = num_commonest = 0
    for _ in range(40):
        output = [t for _ in range(rng.randint(1, 9)) for t in rng.choice(phrases)]
        for i in range(2, len(output)):
            found, size = recent.continuation(output[:i], 3)
            if found:
                assert size in SUFFIXES
                followers = behind(kept, output[i - size : i])
                assert followers[found[0]], "nothing is made up"
                num_found += 1
                num_commonest += followers[found[0]] == max(followers.values())
        recent.add((), output)
        kept.append(output)
    assert num_commonest >= 0.6 * num_found > 0


def behind(outputs: list[list[int]], suffix: list[int]) -> Counter[int]:
    """Return what has followed some tokens, how often."""
    size = len(suffix)
    return Counter(
        output[i + size]
        for output in outputs
        for i in range(len(output) - size)
        if output[i : i + size] == suffix
    )
