"""Proposes what followed the same few tokens the last time: prompt lookup, by n-grams.

Saxena, "Prompt Lookup Decoding" (2023). Free of any model: good where an output repeats its prompt
or itself, as in edits, extraction, code and quotes. Knows tokens. Knows nothing of their meaning.
"""

from array import array
from collections.abc import Sequence

import numpy as np

LONG, SHORT = 4, 2
"""Tokens of the suffixes that are looked for; the long one is asked first."""
MAX_TABLE_BITS = 14
"""A table has 2**14 entries of 4 bytes at most, so a proposer's two have 128 KiB."""
MIN_MANY = 48
"""New tokens from which numpy is faster than a loop."""

_NOWHERE = -1
# Of the last token, the one before it, and so on: odd, below 2**31, so that 4 products fit 64 bits.
_FACTORS = (0x1E3779B1, 0x45EBCA77, 0x42B2AE3D, 0x27D4EB2F)
_LOW_BITS = 12  # of the sum, which few tokens have a part in


class NgramProposer:
    """The place in the tokens so far that ends as they do, and what stands behind it.

    As long as what stands there comes, the place moves along; else the longest n-gram that ends the
    tokens is looked up, at its latest place. Tables are of fixed size and hold places, not tokens:
    a newer n-gram with the same hash takes an older one's entry, and what is found is compared. So
    a token takes constant time, half a microsecond, and a sequence constant memory.

    Attributes:
        num_matched: tokens before that place that are known to be the last ones; 0: none.
    """

    __slots__ = (
        "_long",
        "_mask",
        "_match",
        "_num_seen",
        "_short",
        "_slots",
        "_token_ids",
        "num_matched",
    )

    def __init__(self, token_ids: Sequence[int], max_num_tokens: int) -> None:
        """Begin to follow.

        Args:
            token_ids: of a sequence; read again at each call.
            max_num_tokens: how many they may become.
        """
        size = 1 << min(MAX_TABLE_BITS, max(4, (2 * max_num_tokens).bit_length()))
        self._token_ids = token_ids
        self._long = array("i", [_NOWHERE]) * size
        self._short = array("i", [_NOWHERE]) * size
        self._mask = size - 1
        self._num_seen = 0
        self._match = _NOWHERE  # the tokens before this place are the last ones
        self._slots = (_NOWHERE, _NOWHERE)  # of the n-grams that end the tokens: long, short
        self.num_matched = 0

    def propose(self, max_tokens: int) -> Sequence[int]:
        """See `Proposer`. A run that reaches the end goes on with itself: a loop is a loop."""
        if self._num_seen < len(self._token_ids):
            self._catch_up()
        if self._match == _NOWHERE:
            return ()
        found = list(self._token_ids[self._match : self._match + max_tokens])
        if len(found) < max_tokens:
            period = self._num_seen - self._match
            found.extend(found[i % period] for i in range(len(found), max_tokens))
        return found

    def _catch_up(self) -> None:
        num_tokens = len(self._token_ids)
        if num_tokens - self._num_seen >= MIN_MANY:
            self._index_many(num_tokens)
            return
        if self._match != _NOWHERE and not self._follow(num_tokens):
            self._match = _NOWHERE
        self._index_few(num_tokens)
        self._num_seen = num_tokens
        if self._match == _NOWHERE:
            self._match = self._look_up(num_tokens)

    def _follow(self, num_tokens: int) -> bool:
        """Move the place along the new tokens; tell whether it is still right."""
        tokens, match = self._token_ids, self._match
        for place in range(self._num_seen, num_tokens):
            if tokens[match] != tokens[place]:
                return False
            match += 1
        self.num_matched += match - self._match
        self._match = match
        return True

    def _index_few(self, num_tokens: int) -> None:
        """Index the n-grams that have a follower now: all but those that end the tokens.

        Written out: this is most of what a token takes.
        """
        tokens, first = self._token_ids, self._num_seen
        while first < num_tokens and first + 1 < LONG:
            self._index_one(first)
            first += 1
        if first >= num_tokens:
            return
        short, long, mask = self._short, self._long, self._mask
        factor, factor_2, factor_3, factor_4 = _FACTORS
        long_slot, short_slot = self._slots
        third, second, last = tokens[first - 3 : first]
        for place in range(first, num_tokens):
            short[short_slot] = place
            if long_slot != _NOWHERE:
                long[long_slot] = place
            fourth, third, second, last = third, second, last, tokens[place]
            total = last * factor + second * factor_2
            short_slot = total >> _LOW_BITS & mask
            long_slot = total + third * factor_3 + fourth * factor_4 >> _LOW_BITS & mask
        self._slots = long_slot, short_slot

    def _index_one(self, place: int) -> None:
        """Index the n-grams before a place near the beginning, where the long one has no room."""
        long_slot, short_slot = self._slots
        if short_slot != _NOWHERE:
            self._short[short_slot] = place
            if long_slot != _NOWHERE:
                self._long[long_slot] = place
        self._slots = self._slots_at(place + 1)

    def _index_many(self, num_tokens: int) -> None:
        """Index all n-grams but those that end with the last token, and look that one up."""
        start = max(0, self._num_seen - LONG)
        ids = np.array(self._token_ids[start:], np.int64)
        factor, factor_2, factor_3, factor_4 = _FACTORS
        short = ids[1:] * factor + ids[:-1] * factor_2
        long = short[2:] + ids[1:-2] * factor_3 + ids[:-3] * factor_4
        for table, sums, size in ((self._long, long, LONG), (self._short, short, SHORT)):
            first = max(self._num_seen, start + size)
            slots = sums[first - start - size : -1] >> _LOW_BITS & self._mask
            np.frombuffer(table, np.int32)[slots] = np.arange(first, num_tokens)  # the last stays
        self._num_seen = num_tokens
        self._slots = self._slots_at(num_tokens)
        self._match = self._look_up(num_tokens)

    def _slots_at(self, end: int) -> tuple[int, int]:
        """Return the entries of the n-grams before `end`; NOWHERE where it is too early."""
        tokens, mask = self._token_ids, self._mask
        if end < SHORT:
            return _NOWHERE, _NOWHERE
        total = tokens[end - 1] * _FACTORS[0] + tokens[end - 2] * _FACTORS[1]
        short_slot = total >> _LOW_BITS & mask
        if end < LONG:
            return _NOWHERE, short_slot
        total += tokens[end - 3] * _FACTORS[2] + tokens[end - 4] * _FACTORS[3]
        return total >> _LOW_BITS & mask, short_slot

    def _look_up(self, end: int) -> int:
        """Return the latest place behind the longest n-gram that ends the tokens."""
        tokens = self._token_ids
        self.num_matched = 0
        long_slot, short_slot = self._slots
        if long_slot != _NOWHERE:
            place = self._long[long_slot]
            if place != _NOWHERE and tokens[place - LONG : place] == tokens[end - LONG : end]:
                self.num_matched = LONG
                return place
        if short_slot != _NOWHERE:
            place = self._short[short_slot]
            if place != _NOWHERE and tokens[place - SHORT : place] == tokens[end - SHORT : end]:
                self.num_matched = SHORT
                return place
        return _NOWHERE
