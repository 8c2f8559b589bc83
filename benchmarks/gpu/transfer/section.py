"""The part of `make check-gpu` about KV between two processes on one GPU."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpu.harness.phase import Phase
from gpu.harness.report import failures_and_notes, predictions
from gpu.harness.rows import Rows
from gpu.harness.section import Context, SectionResult, section_data
from gpu.transfer.table import transfer_table


@dataclass(frozen=True)
class TransferSection:
    """Links, first tokens and gaps between tokens, aggregated and disaggregated.

    Attributes:
        size: ``real``, or ``tiny`` for tests of this code.
        device: cuda, or cpu likewise.
    """

    size: str = "real"
    device: str = "cuda"
    name: str = "transfer"

    def run(self, context: Context) -> SectionResult:
        """See `Section`."""

        def save(found: Rows) -> None:
            context.save(section_data(context, found))

        print("moving KV between two processes", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as name:
            plan = "gpu.transfer.points:transfer_groups"
            phase = Phase(plan, self.size, self.device, context.seed, Path(name), save)
            rows = phase.run_in_turn(phase.groups(), context.deadline)
        failures, notes = failures_and_notes(rows)
        return SectionResult(
            section_data(context, rows), transfer_table(rows), failures, notes, predictions(rows)
        )
