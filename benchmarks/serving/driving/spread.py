"""Repeated measurements of one thing: the median, and how far they lie apart."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of the repetitions, in the order they ran."""

    median: float
    min: float
    max: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least one value."""
        return cls(median(values), min(values), max(values), tuple(values))

    @classmethod
    def ratio(cls, numerators: Sequence[float], denominators: Sequence[float]) -> "Spread":
        """Summarise the quotients of values measured beside each other."""
        return cls.of([a / b for a, b in zip(numerators, denominators, strict=True)])

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return asdict(self)

    def text(self, digits: int = 1) -> str:
        """Return `median (min-max)`."""
        return f"{self.median:.{digits}f} ({self.min:.{digits}f}-{self.max:.{digits}f})"
