"""What one tenant's latest outputs said: how suffixes of some tokens went on, most of the times.

Knows tokens. Knows nothing of whose they are.
"""

from array import array
from collections.abc import Sequence

import numpy as np

SUFFIXES = (2, 4, 8)
"""Tokens of the suffixes that are looked for. The longest that is found decides."""
CAPACITY = 1 << 14
"""Tokens that are kept, the latest ones."""
TABLE_BITS = 15
"""A table has 2**15 entries of 4 bytes and one: about two for each token."""
NUM_BYTES = 4 * CAPACITY + len(SUFFIXES) * 5 * (1 << TABLE_BITS)
"""Of one tenant: 544 KiB."""
HEAD_TOKENS = SUFFIXES[-1]
"""Tokens of a prompt that are kept before its output, so that its beginning is foreseen too."""

_NOWHERE = 0  # what stands there is _EDGE, so nothing goes on there
_EDGE = -1  # between two outputs: equal to no token
_MAX_VOTES = 7
_MASK = (1 << TABLE_BITS) - 1
_LOW_BITS = 12  # of the sum, which few tokens have a part in
# Of the last token, the one before it, and so on: odd, below 2**31, so that 8 products of token
# ids fit 63 bits.
_FACTORS = (
    0x1E3779B1, 0x45EBCA77, 0x42B2AE3D, 0x27D4EB2F, 0x165667B1, 0x3C6EF371, 0x2545F491, 0x51ED270B,
)  # fmt: skip


class RecentOutputs:
    """Outputs behind each other, and for each length of suffix a table: hash -> where it goes on.

    An entry is kept by votes: each further place that goes on alike is one for it, and takes its
    place, so it stays recent; each that goes on otherwise, or is another suffix of the same hash,
    is one against it, and takes its place once there are more against it than for it. So what
    mostly followed is found in constant time and memory, whatever else followed now and then.
    """

    __slots__ = ("_num_tokens", "_places", "_tokens", "_votes")

    def __init__(self) -> None:
        self._tokens = array("i", [_EDGE]) * CAPACITY
        self._num_tokens = 1
        self._places = [array("i", [_NOWHERE]) * (1 << TABLE_BITS) for _ in SUFFIXES]
        self._votes = [array("b", [0]) * (1 << TABLE_BITS) for _ in SUFFIXES]

    def add(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> None:
        """Learn an output: some 0.1 ms, and 0.2 us for each token. Of a long one its end."""
        output = output_token_ids[-(CAPACITY // 2 - HEAD_TOKENS - 1) :]
        head = prompt_token_ids[-HEAD_TOKENS:] if len(output) == len(output_token_ids) else ()
        num_new = 1 + len(head) + len(output)
        if self._num_tokens + num_new > CAPACITY:
            self._forget(CAPACITY // 2)
        first, end = self._num_tokens + 1 + len(head), self._num_tokens + num_new
        self._tokens[self._num_tokens : end] = array("i", [_EDGE, *head, *output])
        self._num_tokens = end
        self._index(first, end)

    def continuation(
        self, token_ids: Sequence[int], max_tokens: int, *, longer_than: int = 0
    ) -> tuple[list[int], int]:
        """Return what mostly followed the last tokens, and how many of them it followed.

        Each token is that of the most votes behind those before it, so it may be from several
        outputs. Where a suffix of two is all that is known, it must have gone on alike before.

        Args:
            token_ids: at least one.
            max_tokens: at least 1.
            longer_than: tokens that somebody else's proposal is known to follow: what follows no
                more of them is of no use, and not looked for.
        """
        if longer_than >= SUFFIXES[-1]:
            return [], 0
        tail = list(token_ids[-SUFFIXES[-1] :])
        place, num_matched = self._look_up(tail)
        if num_matched <= longer_than:
            return [], 0
        tokens, found = self._tokens, list[int]()
        while place != _NOWHERE and place < self._num_tokens and tokens[place] != _EDGE:
            found.append(tokens[place])
            if len(found) >= max_tokens:
                break
            tail.append(tokens[place])
            del tail[: -SUFFIXES[-1]]
            voted, _ = self._look_up(tail)
            place = voted if voted != _NOWHERE else place + 1
        return found, num_matched

    def _look_up(self, tail: list[int]) -> tuple[int, int]:
        """Return where the longest suffix of a tail goes on, and its length; (_NOWHERE, 0): none.

        Whatever goes on after a long suffix does so after a short one, so who finds no short one
        looks for no other: nearly always that is all.
        """
        found, num_matched = _NOWHERE, 0
        total, num_summed, end = 0, 0, len(tail)
        for i, size in enumerate(SUFFIXES):
            if size > end:
                break
            while num_summed < size:
                total += tail[end - 1 - num_summed] * _FACTORS[num_summed]
                num_summed += 1
            slot = (total >> _LOW_BITS) & _MASK
            place = self._places[i][slot]
            if place == _NOWHERE:
                break
            if self._tokens[place - size : place].tolist() != tail[-size:]:
                continue
            if i or self._votes[i][slot]:
                found, num_matched = place, size
        return found, num_matched

    def _index(self, first: int, end: int) -> None:
        """Let the tokens from `first` to `end` vote for what follows the suffixes before them."""
        tokens = np.frombuffer(self._tokens, np.int32)
        new = np.arange(max(first, SUFFIXES[0]), end)
        before = max(0, first - SUFFIXES[-1])
        ids = tokens[before:end].astype(np.int64)
        sums, num_summed = np.zeros(len(new), np.int64), 0
        for i, size in enumerate(SUFFIXES):
            start = max(first, size)
            if start >= end:
                break
            new, sums = new[start - end :], sums[start - end :]
            for back in range(num_summed, size):
                sums += ids[start - 1 - back - before : end - 1 - back - before] * _FACTORS[back]
            num_summed = size
            slots = (sums >> _LOW_BITS) & _MASK
            places = np.frombuffer(self._places[i], np.int32)
            votes = np.frombuffer(self._votes[i], np.int8)
            is_alike = tokens[places[slots]] == tokens[new]
            counts = votes[slots] + np.where(is_alike, 1, -1).astype(np.int8)
            takes_place = is_alike | (counts < 0)
            # Of places with the same slot the last one stays.
            places[slots[takes_place]] = new[takes_place]
            votes[slots] = counts.clip(0, _MAX_VOTES)

    def _forget(self, num_kept: int) -> None:
        """Keep the latest tokens and what is known of them."""
        num_dropped = max(0, self._num_tokens - num_kept)
        kept = self._tokens[num_dropped : self._num_tokens]
        kept[0] = _EDGE  # which _NOWHERE means
        self._tokens[: len(kept)] = kept
        self._num_tokens = len(kept)
        for table in self._places:
            places = np.frombuffer(table, np.int32)
            places -= num_dropped
            # Those whose suffix is not all there any more.
            places[places <= SUFFIXES[-1]] = _NOWHERE
