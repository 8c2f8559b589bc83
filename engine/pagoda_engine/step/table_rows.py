"""Which row of persistent block tables each sequence has, and what must change there.

The tables stay from step to step; only new blocks are written. Knows sequences and block ids. Knows
nothing of tensors.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Entries to write: ``tables.flatten()[positions[i]] = block_ids[i]``; no position twice."""

    positions: list[int]
    block_ids: list[int]


class TableRows:
    """Rows [0, n) belong to the n sequences of the latest step, in any order."""

    def __init__(self, num_columns: int) -> None:
        """Begin with no rows.

        Args:
            num_columns: of the tables.
        """
        self._num_columns = num_columns
        self._row_of: dict[Sequence, int] = {}
        # Of each row: whose blocks lie there, and how many of them.
        self._block_ids: list[list[int]] = []
        self._nums_written: list[int] = []

    def assign(self, sequences: SequenceOf[Sequence]) -> tuple[list[int], TableUpdate]:
        """Give each sequence a row, the one it has if possible.

        Returns:
            The row of each sequence, and what to write before anybody reads the tables.
        """
        row_of = self._row_of
        if len(sequences) != len(row_of) or not all(map(row_of.__contains__, sequences)):
            row_of = self._row_of = self._reassigned(sequences)
        rows = [row_of[sequence] for sequence in sequences]
        return rows, self._update(rows, sequences)

    def _reassigned(self, sequences: SequenceOf[Sequence]) -> dict[Sequence, int]:
        num_rows = len(sequences)
        wanted = set(sequences)
        row_of = {s: row for s, row in self._row_of.items() if row < num_rows and s in wanted}
        taken = set(row_of.values())
        free_rows = (row for row in range(num_rows) if row not in taken)
        newcomers = (sequence for sequence in sequences if sequence not in row_of)
        row_of.update([*zip(newcomers, free_rows, strict=True)])
        num_missing = num_rows - len(self._block_ids)
        if num_missing > 0:
            self._block_ids += [[] for _ in range(num_missing)]
            self._nums_written += [0] * num_missing
        else:
            del self._block_ids[num_rows:], self._nums_written[num_rows:]
        return row_of

    def _update(self, rows: list[int], sequences: SequenceOf[Sequence]) -> TableUpdate:
        update = TableUpdate([], [])
        written, nums_written = self._block_ids, self._nums_written
        for row, sequence in zip(rows, sequences, strict=True):
            block_ids = sequence.block_ids
            num_blocks = len(block_ids)
            is_same = block_ids is written[row]  # after a preemption it is another list
            if is_same and num_blocks == nums_written[row]:
                continue
            num_written = nums_written[row] if is_same else 0
            first = row * self._num_columns
            update.positions.extend(range(first + num_written, first + num_blocks))
            update.block_ids.extend(block_ids[num_written:])
            written[row], nums_written[row] = block_ids, num_blocks
        return update
