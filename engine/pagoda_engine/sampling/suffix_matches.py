"""Where the end of a sequence has come before, kept up to date as tokens come.

Knows tokens. Knows nothing of penalties.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagoda_engine.token_mask import TokenBits


class SuffixMatches:
    """For each of the latest tokens, how many tokens up to it equal the sequence's last ones.

    A token costs a few vector operations over the window, whatever has come before it and however
    long the sequence is. What is found hangs on the tokens in the window alone: not on when they
    were taken in, so a preemption or a failover changes nothing.
    """

    __slots__ = ("_breakers", "_lengths", "_max_length", "_num_followed", "_size", "_tokens")

    def __init__(self, *, window: int, max_length: int, breakers: TokenBits | None = None) -> None:
        """Begin with no token.

        Args:
            window: latest tokens that are looked at, 5 bytes twice each.
            max_length: longest match that is counted, below 256.
            breakers: tokens that end every match; none is counted.
        """
        self._tokens = np.zeros(2 * window, np.int32)
        self._lengths = np.zeros(2 * window, np.uint8)
        self._size = 0  # tokens held; the window is the last half of them, or all
        self._max_length = max_length
        self._breakers = breakers
        self._num_followed = 0

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take in what is new at the end of a sequence's tokens, to which some were appended."""
        window = len(self._tokens) // 2
        new = token_ids[max(self._num_followed, len(token_ids) - window) :]
        self._num_followed = len(token_ids)
        num_passed = max(0, len(new) - self._max_length)
        if num_passed:  # no match that is counted goes back so far
            held = np.concatenate(
                (self._tokens[: self._size], np.array(new[:num_passed], np.int32))
            )
            self._size = min(len(held), window)
            self._tokens[: self._size] = held[-self._size :]
            self._lengths[: self._size] = 0
        for token_id in new[num_passed:]:
            self._append(token_id)

    def matches(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Return the N tokens of the window and how long a match ends at each but the last.

        int32 ``[N]``, not to be changed, and uint8 ``[N - 1]`` (``[0]`` without a token). A match
        lies in the window, and is cut at the maximal length.
        """
        window = len(self._tokens) // 2
        start = max(0, self._size - window)
        lengths = self._lengths[start : max(start, self._size - 1)].copy()
        first = lengths[: self._max_length]
        np.minimum(first, np.arange(1, len(first) + 1), out=first, casting="unsafe")
        return self._tokens[start : self._size], lengths

    def breaks(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether each token ends every match."""
        if self._breakers is None:
            return np.zeros(len(token_ids), np.bool_)
        are_breakers: npt.NDArray[np.int64] = self._breakers[token_ids >> 5] >> (token_ids & 31) & 1
        return are_breakers.astype(np.bool_)

    def _append(self, token_id: int) -> None:
        tokens, lengths, window = self._tokens, self._lengths, len(self._tokens) // 2
        if self._size == len(tokens):
            tokens[:window], lengths[:window] = tokens[window:].copy(), lengths[window:].copy()
            self._size = window
        size, start = self._size, max(0, self._size - window)
        if self._breakers is not None and self._breakers[token_id >> 5] >> (token_id & 31) & 1:
            lengths[start:size] = 0
        elif size:
            longer = np.minimum(lengths[start : size - 1], self._max_length - 1)
            longer += 1
            longer *= tokens[start + 1 : size] == token_id
            lengths[start] = tokens[start] == token_id  # what came before it is out of the window
            lengths[start + 1 : size] = longer
        tokens[size], lengths[size] = token_id, 0
        self._size += 1
