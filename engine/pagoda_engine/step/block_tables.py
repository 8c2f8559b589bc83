"""Block tables of a step, on the host: what was there in the step before is not written again.

Knows sequences and block ids. Knows nothing of the device.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.step.table_rows import TableRows


class BlockTables:
    """A table of all that the latest step computed, which goes on from step to step."""

    def __init__(self, num_columns: int) -> None:
        """Begin with no rows.

        Args:
            num_columns: blocks of a sequence at most.
        """
        self._rows = TableRows(num_columns)
        self._tables = np.zeros((0, num_columns), dtype=np.int32)

    def of(self, sequences: SequenceOf[Sequence]) -> npt.NDArray[np.int32]:
        """Return ``[S, blocks]``, a copy; what is behind a sequence's blocks means nothing."""
        rows, update = self._rows.assign(sequences)
        if len(rows) > len(self._tables):
            more = np.zeros((len(rows), self._tables.shape[1]), dtype=np.int32)
            self._tables = np.concatenate((self._tables, more))
        if update.positions:
            self._tables.reshape(-1)[update.positions] = update.block_ids
        num_columns = max((len(sequence.block_ids) for sequence in sequences), default=0)
        return self._tables[rows, :num_columns]
