"""How long a forward of a small model takes, from those that were timed. Knows numbers only."""

import math

DECAY = 0.99
"""Per forward that was timed: a half-life of about 70 forwards."""


class ForwardTime:
    """Seconds of a forward = base + per_token * tokens: least squares of the relative error.

    Neither is below 0. Times that are several times too long, because something else had the
    processor, weigh little; what was timed first is never quite forgotten, so that forwards of as
    many tokens again and again leave the line where it was.

    Attributes:
        base: of a forward; 0 until something was timed.
        per_token: of each of its tokens; likewise.
    """

    __slots__ = ("_first", "_sums", "base", "per_token")

    def __init__(self) -> None:
        self.base = 0.0
        self.per_token = 0.0
        self._sums = [0.0] * 5  # of 1, n and n * n over s * s, of 1 and n over s
        self._first = [0.0] * 5

    def add(self, num_tokens: int, seconds: float, *, is_first: bool = False) -> None:
        """Learn from a forward.

        Args:
            num_tokens: that it computed, at least 1.
            seconds: that it took; 0 says nothing.
            is_first: it is of the start, and stays known.
        """
        if seconds <= 0.0:
            return
        one, n = 1.0 / seconds, num_tokens / seconds
        new = (one * one, one * n, n * n, one, n)
        sums = self._first if is_first else self._sums
        decay = 1.0 if is_first else DECAY
        for i, value in enumerate(new):
            sums[i] = decay * sums[i] + value
        self._fit()

    def of(self, num_tokens: int) -> float:
        """Return the seconds of a forward of so many tokens."""
        return self.base + self.per_token * num_tokens

    def tokens_within(self, seconds: float) -> float:
        """Return how many tokens a forward of these seconds has, whole or infinite; see `of`."""
        if not self.per_token:
            return math.inf
        return math.floor((seconds - self.base) / self.per_token * (1 + 1e-9) + 1e-9)

    def _fit(self) -> None:
        ones, mixed, squares, by_one, by_n = map(sum, zip(self._sums, self._first, strict=True))
        determinant = ones * squares - mixed * mixed
        if determinant <= 1e-9 * ones * squares:  # all of as many tokens
            self.base, self.per_token = by_one / ones, 0.0
            return
        base = (by_one * squares - by_n * mixed) / determinant
        per_token = (by_n * ones - by_one * mixed) / determinant
        if base < 0.0:
            base, per_token = 0.0, by_n / squares
        elif per_token < 0.0:
            base, per_token = by_one / ones, 0.0
        self.base, self.per_token = base, per_token
