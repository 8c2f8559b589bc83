"""What the faults of a case cost: one row a kind of fault, one verdict a case."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from chaos.cases import Case
from chaos.streams import Outcome, Stream

MAX_EXAMPLES = 5
COLUMNS = (
    "case",
    "fault",
    "faults",
    "streams",
    "refused",
    "failed",
    "broken",
    "hung",
    "wrong",
    "gap p50 s",
    "gap max s",
    "recovery s",
)


@dataclass(slots=True)
class Row:
    """All faults of one kind within a case."""

    case: Case
    fault: str
    num_faults: int = 0
    streams: list[Stream] = field(default_factory=list)
    refused_seconds: float = 0.0  # from a fault to the last refusal after it, the longest
    recovery_seconds: float = 0.0  # from a fault to all ready and a new stream's first token

    def count(self, *outcomes: Outcome) -> int:
        """How many streams ended so."""
        return sum(1 for stream in self.streams if stream.outcome in outcomes)

    def gaps(self) -> list[float]:
        """The longest silence of each stream that was let in, seconds."""
        skipped = (Outcome.REFUSED, Outcome.ABORTED)
        return [stream.longest_gap for stream in self.streams if stream.outcome not in skipped]

    def faults_found(self) -> list[str]:
        """Why the row does not pass; empty if it does."""
        case, found = self.case, []
        for outcome in (Outcome.FAILED, Outcome.HUNG, Outcome.WRONG):
            if number := self.count(outcome):
                found.append(f"{number} of {len(self.streams)} streams {outcome}")
        if (number := self.count(Outcome.BROKEN)) and not case.may_break:
            found.append(f"{number} of {len(self.streams)} connections broken")
        if self.count(Outcome.REFUSED) and self.refused_seconds > case.max_refused_seconds:
            limit = case.max_refused_seconds
            found.append(f"refused for {self.refused_seconds:.1f} s; the limit is {limit:g} s")
        if (gap := max(self.gaps(), default=0.0)) > case.max_gap_seconds:
            found.append(f"{gap:.1f} s of silence; the limit is {case.max_gap_seconds:g} s")
        return [f"{self.fault}: {reason}" for reason in found]

    def cells(self) -> list[str]:
        """The row of the table, in the order of COLUMNS."""
        gaps = self.gaps() or [0.0]
        counts = (
            self.num_faults,
            len(self.streams),
            self.count(Outcome.REFUSED),
            self.count(Outcome.FAILED),
            self.count(Outcome.BROKEN),
            self.count(Outcome.HUNG),
            self.count(Outcome.WRONG),
        )
        times = (median(gaps), max(gaps), self.recovery_seconds)
        return [self.case.name, self.fault, *map(str, counts), *(f"{t:.2f}" for t in times)]


@dataclass(slots=True)
class CaseResult:
    """One case: its rows, what was still held afterwards, what else went wrong."""

    case: Case
    expected: dict[str, str]
    rows: dict[str, Row] = field(default_factory=dict)
    injected: list[str] = field(default_factory=list)
    idle_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def row(self, fault: str) -> Row:
        """The row of a kind of fault."""
        return self.rows.setdefault(fault, Row(self.case, fault))

    def all_problems(self) -> list[str]:
        """Empty if the case passes."""
        return [text for row in self.rows.values() for text in row.faults_found()] + self.problems

    def as_dict(self) -> dict[str, Any]:
        """Plain types, the worst streams included."""
        return {
            "about": self.case.about,
            "passed": not self.all_problems(),
            "problems": self.all_problems(),
            "idle_seconds": round(self.idle_seconds, 2),
            "injected": self.injected,
            "rows": [dict(zip(COLUMNS, row.cells(), strict=True)) for row in self.rows.values()],
            "bad_streams": [
                {"fault": row.fault, **stream.as_dict(self.expected.get(stream.prompt.text))}
                for row in self.rows.values()
                for stream in _bad(row)
            ],
        }


def _bad(row: Row) -> list[Stream]:
    """A few of every outcome that is not well, the most silent first."""
    chosen: list[Stream] = []
    for outcome in (Outcome.WRONG, Outcome.HUNG, Outcome.FAILED, Outcome.BROKEN, Outcome.REFUSED):
        streams = [stream for stream in row.streams if stream.outcome is outcome]
        streams.sort(key=lambda stream: -stream.longest_gap)
        chosen += streams[:MAX_EXAMPLES]
    return chosen


def table(results: list[CaseResult]) -> str:
    """Return all rows as a table for people and for Markdown."""
    lines = [list(COLUMNS)] + [row.cells() for one in results for row in one.rows.values()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])
