"""What `make check-gpu` is made of: sections, each with its own results file and table rows.

A subject adds a module with a `Section` and names it in `check_gpu.SECTIONS`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu.harness.deadline import Deadline
from gpu.harness.rows import Rows


@dataclass(frozen=True)
class Context:
    """What every section is given.

    Attributes:
        deadline: when the section has to be back, with whatever it has.
        seed: of all random data of this run; fresh unless the caller repeats one.
        ops: operators to look at; all if empty.
        skip_tests: leave the device tests out.
        save: writes what there is so far where the section's results go.
    """

    deadline: Deadline
    seed: int
    ops: tuple[str, ...] = ()
    skip_tests: bool = False
    save: Callable[[dict[str, Any]], object] = lambda data: None


@dataclass(frozen=True)
class SectionResult:
    """What a section found.

    Attributes:
        data: written as JSON beside the provenance of the run.
        table: lines to print last, widest facts first.
        failures: sentences on what is wrong; any makes the run fail.
        notes: sentences on what was left out.
        predictions: (what, predicted, measured) in words, for the notes file of the section.
    """

    data: dict[str, Any]
    table: list[str]
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    predictions: list[tuple[str, str, str]] = field(default_factory=list)


class Section(Protocol):
    """One part of a run, with the GPU to itself while it runs."""

    @property
    def name(self) -> str:
        """Name of its results file, without the suffix."""
        ...

    def run(self, context: Context) -> SectionResult:
        """Measure until done or until the deadline passes."""
        ...


def section_data(context: Context, rows: Rows) -> dict[str, Any]:
    """Return what is written as JSON."""
    points = [{"group": group, "name": name, **row} for (group, name), row in rows.items()]
    return {"seed": context.seed, "points": points}
