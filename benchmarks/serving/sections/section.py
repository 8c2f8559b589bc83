"""What one part of the standard set found: tables for people, all values for programs."""

from dataclasses import dataclass, field
from typing import Any

from driving.spread import Spread

from pagoda_cli.bench.results import Results


@dataclass(slots=True)
class Section:
    """One part of the report."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spreads: dict[str, Spread] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return {
            "title": self.title,
            "spreads": {name: spread.as_dict() for name, spread in self.spreads.items()},
            "details": self.details,
            "notes": self.notes,
        }

    def markdown(self) -> str:
        """Return the section as Markdown."""
        lines = [f"## {self.title}", ""]
        for cells in (self.columns, ["---"] * len(self.columns), *self.rows):
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", *(f"- {note}" for note in self.notes), ""]
        return "\n".join(lines)


def failures(runs: list[Results]) -> str:
    """Return `failed/all` over several runs."""
    return f"{sum(run.num_failed for run in runs)}/{sum(run.num_requests for run in runs)}"


def p50(results: Results, name: str) -> float:
    """Return the median of a latency in ms.

    Raises:
        RuntimeError: no request was complete; holds the first failures.
    """
    distribution = getattr(results, f"{name}_ms")
    if distribution is None:
        raise RuntimeError(f"no complete request: {results.failures} {results.failure_examples}")
    return float(distribution.p50)
