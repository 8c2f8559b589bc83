"""Pauses between tries."""

import random


def pause_seconds(num_tries: int, *, first: float = 0.05, longest: float = 0.5) -> float:
    """Return how long to wait after this many earlier tries: longer each time, never in step.

    `first` and `longest` are bounds, after the first try and after any.
    """
    return min(longest, first * 2.0 ** min(num_tries, 16)) * (0.5 + random.random() / 2)
