"""A histogram for what is counted many times a second, by one thread: no locks, no buckets walked.

prometheus_client's own takes 2 us warm, and a worker counts ten values in each step.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class PlainHistogram(Collector):
    """Observed from one thread only. What is scraped from another may lack its latest values."""

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str = "",
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """Register it.

        Args:
            name: with its unit.
            documentation: one line.
            label: whose values `labels` takes; empty: there is one series, of `observe`.
            buckets: upper bounds, ascending.
            registry: that asks for it.
        """
        self._name, self._documentation, self._label = name, documentation, label
        self._bounds = tuple(buckets)
        self._series: dict[str, Series] = {}
        self.observe = self.labels("").observe if not label else _needs_label
        registry.register(self)

    def labels(self, value: str) -> "Series":
        """Return the series of a label's value."""
        return self._series.setdefault(value, Series(self._bounds))

    def describe(self) -> list[HistogramMetricFamily]:
        """Return the name alone, so that no other metric has it."""
        return [HistogramMetricFamily(self._name, self._documentation)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield all series."""
        labels = [self._label] if self._label else []
        family = HistogramMetricFamily(self._name, self._documentation, labels=labels)
        for value, series in self._series.items():
            family.add_metric([value] if self._label else [], *series.cumulated())
        yield family


class Series:
    """One series: how many observations were how large."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulated(self) -> tuple[list[tuple[str, float]], float]:
        """Return (upper bound, number of values not above it) of each bucket, and their sum."""
        buckets, total = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            le = floatToGoString(bound)  # type: ignore[no-untyped-call]
            buckets.append((le, float(total)))
        return buckets, self._sum


def _needs_label(_: float) -> None:
    raise ValueError("this histogram has a label: observe by `labels(value)`")
