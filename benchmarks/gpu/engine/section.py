"""The engine's part of `make check-gpu`: right tokens first, then every shape's speed.

A shape whose width or family gave wrong tokens is not timed. Knows phases and shares of time.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpu.engine.table import engine_table
from gpu.harness.phase import Phase
from gpu.harness.points import Group
from gpu.harness.report import failures_and_notes, predictions
from gpu.harness.rows import BUILD, Rows
from gpu.harness.section import Context, SectionResult, section_data

GOLDEN_SHARE = 0.35
MAX_WORKERS = 12


@dataclass(frozen=True)
class EngineSection:
    """Golden tokens and speed of the engine.

    Attributes:
        size: ``real``, or ``tiny`` for tests of this code.
        device: cuda, or cpu likewise.
    """

    size: str = "real"
    device: str = "cuda"
    name: str = "engine"

    def run(self, context: Context) -> SectionResult:
        """See `Section`."""
        rows: Rows = {}

        def save(found: Rows) -> None:
            context.save(section_data(context, rows | found))

        with tempfile.TemporaryDirectory() as name:
            common = (self.size, self.device, context.seed, Path(name), save)
            golden = Phase("gpu.engine.plans:golden_groups", *common)
            speed = Phase("gpu.engine.plans:speed_groups", *common)
            groups = speed.groups()
            with speed.started(groups[:1]) as first:  # it imports while tokens are compared
                print("comparing the engine's tokens", file=sys.stderr, flush=True)
                rows |= golden.run_beside_each_other(
                    golden.groups(),
                    context.deadline.share(GOLDEN_SHARE),
                    self._num_workers(),
                )
                print("timing the engine", file=sys.stderr, flush=True)
                may_run, refused = _sorted_out(groups, rows)
                rows |= refused
                rows |= speed.run_in_turn(may_run, context.deadline, first)
        failures, notes = failures_and_notes(rows)
        return SectionResult(
            section_data(context, rows), engine_table(rows), failures, notes, predictions(rows)
        )

    def _num_workers(self) -> int:
        if self.device != "cuda":
            return 1
        return max(1, min(MAX_WORKERS, (os.cpu_count() or 1) - 2))


def _sorted_out(groups: list[Group], rows: Rows) -> tuple[list[Group], Rows]:
    """Return the groups of which nothing is wrong, and rows that say why the others do not run."""
    may_run, refused = [], Rows()
    for group in groups:
        reason = next((r for name in group.requires if (r := _reason(name, rows))), None)
        if reason is None:
            may_run.append(group)
            continue
        for name in (BUILD, *(point.name for point in group.points)):
            refused[group.name, name] = {"status": "left out", "reason": reason}
    return may_run, refused


def _reason(name: str, rows: Rows) -> str | None:
    for (group, point), row in rows.items():
        if group == name and row["status"] == "wrong":
            return f"{group}, {point}: {row['status']}"
    return None
