"""Which row of the device's block tables each decode has, and what must change there.

The tables stay on the device from step to step; only new blocks travel. Knows sequences and block
ids. Knows nothing of tensors.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.scheduler.sequence import Sequence


@dataclass(slots=True)
class _Row:
    """What lies in one row: the first `num_written` entries of `block_ids`, of `sequence`."""

    sequence: Sequence
    block_ids: list[int]
    num_written: int = 0


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Entries to write: ``tables.flatten()[positions[i]] = block_ids[i]``; no position twice."""

    positions: list[int]
    block_ids: list[int]


class DecodeRows:
    """Rows [0, n) belong to the n decodes of the latest step, in any order."""

    def __init__(self, num_columns: int) -> None:
        """Begin with no rows.

        Args:
            num_columns: of the tables.
        """
        self._num_columns = num_columns
        self._rows: list[_Row] = []

    def assign(self, sequences: SequenceOf[Sequence]) -> tuple[list[int], TableUpdate]:
        """Give each sequence a row, the one it has if possible.

        Returns:
            The row of each sequence, and what to write before anybody reads the tables.
        """
        wanted = set(sequences)
        kept = {
            row.sequence: i
            for i, row in enumerate(self._rows[: len(sequences)])
            # After a preemption a sequence has other blocks, in another list.
            if row.sequence in wanted and row.block_ids is row.sequence.block_ids
        }
        newcomers = (s for s in sequences if s not in kept)
        taken = set(kept.values())
        del self._rows[len(sequences) :]
        for i in range(len(sequences)):
            if i not in taken:
                sequence = next(newcomers)
                row = _Row(sequence, sequence.block_ids)
                kept[sequence] = i
                if i < len(self._rows):
                    self._rows[i] = row
                else:
                    self._rows.append(row)
        return [kept[s] for s in sequences], self._update()

    def _update(self) -> TableUpdate:
        update = TableUpdate([], [])
        for i, row in enumerate(self._rows):
            num_blocks = len(row.block_ids)
            if row.num_written < num_blocks:
                first = i * self._num_columns
                update.positions.extend(range(first + row.num_written, first + num_blocks))
                update.block_ids.extend(row.block_ids[row.num_written :])
                row.num_written = num_blocks
        return update
