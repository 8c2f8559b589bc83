"""Percentiles over a bounded number of samples. Knows numbers only."""

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_SAMPLES = 1_000_000


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the `percent` percentile of sorted values, linearly interpolated (numpy's default)."""
    if not ordered:
        raise ValueError("percentile of no values")
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is reported of one latency, in milliseconds."""

    num_samples: int
    mean: float
    p50: float
    p95: float
    p99: float
    min: float
    max: float


class Samples:
    """Values in seconds: all of them up to `max_samples`, from there on a uniform random sample."""

    __slots__ = ("_max_samples", "_random", "_sum", "_values", "num_seen")

    def __init__(self, *, max_samples: int = MAX_SAMPLES, seed: int = 0) -> None:
        self._values = array("d")
        self._max_samples = max_samples
        self._random = random.Random(seed)
        self._sum = 0.0
        self.num_seen = 0

    def add(self, value: float) -> None:
        """Take one value."""
        self.num_seen += 1
        self._sum += value
        if len(self._values) < self._max_samples:
            self._values.append(value)
            return
        place = self._random.randrange(self.num_seen)
        if place < self._max_samples:
            self._values[place] = value

    def extend(self, values: Iterable[float]) -> None:
        """Take several values."""
        for value in values:
            self.add(value)

    def distribution_ms(self) -> Distribution | None:
        """Return the distribution in milliseconds, None without values."""
        if not self._values:
            return None
        ordered = sorted(self._values)
        return Distribution(
            num_samples=self.num_seen,
            mean=1e3 * self._sum / self.num_seen,
            p50=1e3 * percentile(ordered, 50),
            p95=1e3 * percentile(ordered, 95),
            p99=1e3 * percentile(ordered, 99),
            min=1e3 * ordered[0],
            max=1e3 * ordered[-1],
        )
