"""Where two prompts part, and how much of what follows is equal again. Knows token ids alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pagoda_gateway.accounts.prefixes.sketch import Grams, Tokens, gram_hashes

MAX_TOKENS = 1 << 16  # compared of each prompt
WINDOW_TOKENS = 4096  # searched behind a difference for what is equal again
MAX_GAPS = 32
MAX_SHIFTS = 16  # looked at for each gap
SHORT_TOKENS = 64  # of a difference that is a value in a text, rather than another text
LONG_TOKENS = 32  # so many equal ones are no accident: templates repeat shorter ones


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two prompts beside each other.

    Attributes:
        first: index of the first token that differs.
        earlier_end, later_end: where each goes on as the other one does; its end if it never does.
        num_equal_after: tokens that are equal, in the same order, behind the first difference.
        num_changed: tokens between equal ones that would be equal, too, had nothing changed: those
            of short differences, as many as the shorter side has.
    """

    first: int
    earlier_end: int
    later_end: int
    num_equal_after: int
    num_changed: int = 0


def num_equal(earlier: Tokens, later: Tokens) -> int:
    """Return how many leading tokens are equal."""
    num = min(len(earlier), len(later))
    differs = earlier[:num] != later[:num]
    first = int(differs.argmax()) if num else 0
    return first if num and differs[first] else num


def align(earlier: Tokens, later: Tokens) -> Alignment:
    """Align two prompts from their first difference on, the nearest long run of equal tokens first.

    Runs of fewer than `GRAM_TOKENS` tokens are not found.
    """
    earlier, later = earlier[:MAX_TOKENS], later[:MAX_TOKENS]
    first = num_equal(earlier, later)
    ends = len(earlier), len(later)
    i, j, num_after, num_changed = first, first, 0, 0
    earlier_grams, later_grams = gram_hashes(earlier[first:]), gram_hashes(later[first:])
    for gap in range(MAX_GAPS):
        best = 0, 0, 0
        for skipped, added in _common(
            earlier_grams[i - first : i - first + WINDOW_TOKENS],
            later_grams[j - first : j - first + WINDOW_TOKENS],
        ):
            run = num_equal(earlier[i + skipped :], later[j + added :])
            if run > best[0]:
                best = run, skipped, added
            if run >= LONG_TOKENS:
                break
        run, skipped, added = best
        if not run:
            break
        i, j = i + skipped, j + added
        if gap == 0:
            ends = i, j
        num_after += run
        num_changed += min(skipped, added) if max(skipped, added) <= SHORT_TOKENS else 0
        i, j = i + run, j + run
    return Alignment(first, ends[0], ends[1], num_after, num_changed)


def _common(earlier: Grams, later: Grams) -> Iterator[tuple[int, int]]:
    """Yield indices at which both have the same hash, the nearest first, each shift once."""
    if not len(earlier) or not len(later):
        return
    order = np.argsort(earlier, kind="stable")
    in_order = earlier[order]
    places = np.minimum(np.searchsorted(in_order, later), len(in_order) - 1)
    (added,) = np.nonzero(in_order[places] == later)
    skipped = order[places[added]]
    _, firsts = np.unique(skipped - added, return_index=True)
    skipped, added = skipped[firsts], added[firsts]
    for index in np.argsort(skipped + added, kind="stable")[:MAX_SHIFTS].tolist():
        yield int(skipped[index]), int(added[index])
