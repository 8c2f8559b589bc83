"""The part of `make check-gpu` about KV between two processes on one GPU."""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine_section import section_data
from engine_table import failures_and_notes, predictions
from gpu_section import Context, SectionResult
from importable import missing_folders
from supervise import Rows
from transfer_table import transfer_table


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
        sys.path.extend(missing_folders())
        from plans import groups_of
        from point_phase import Phase

        def save(found: Rows) -> None:
            context.save(section_data(context, found))

        print("moving KV between two processes", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as name:
            phase = Phase("transfer", self.size, self.device, context.seed, Path(name), save)
            rows = phase.run_in_turn(groups_of("transfer", self.size), context.deadline)
        failures, notes = failures_and_notes(rows)
        return SectionResult(
            section_data(context, rows), transfer_table(rows), failures, notes, predictions(rows)
        )
