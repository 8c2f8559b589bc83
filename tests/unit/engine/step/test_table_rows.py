import random

import torch
from support.bare_sequence import bare_sequence, random_batches

from pagoda_engine.scheduler import Sequence
from pagoda_engine.step.table_rows import TableRows

NUM_COLUMNS = 9


class Tables:
    """Block tables as the device has them; every row is compared with its sequence's blocks."""

    def __init__(self) -> None:
        self.rows = TableRows(NUM_COLUMNS)
        self.tensor = torch.full((16, NUM_COLUMNS), -1)

    def assign(self, sequences: list[Sequence]) -> tuple[list[int], int]:
        """Return the rows and how many entries had to be written."""
        rows, update = self.rows.assign(sequences)
        assert sorted(rows) == list(range(len(sequences))), "rows are not dense"
        assert len(set(update.positions)) == len(update.positions)
        self.tensor.view(-1)[update.positions] = torch.tensor(update.block_ids, dtype=torch.int64)
        for row, sequence in zip(rows, sequences, strict=True):
            num_blocks = len(sequence.block_ids)
            assert self.tensor[row, :num_blocks].tolist() == sequence.block_ids
        return rows, len(update.positions)


def test_only_new_blocks_are_written() -> None:
    tables = Tables()
    a, b = bare_sequence([3, 4]), bare_sequence([5])
    assert tables.assign([a, b]) == ([0, 1], 3)
    assert tables.assign([a, b]) == ([0, 1], 0)
    b.block_ids.append(7)
    assert tables.assign([a, b]) == ([0, 1], 1)


def test_a_row_that_is_left_goes_to_the_last_one() -> None:
    tables = Tables()
    a, b, c = (bare_sequence([i, i + 10]) for i in range(3))
    tables.assign([a, b, c])
    assert tables.assign([b, c]) == ([1, 0], 2)


def test_order_of_the_batch_does_not_matter() -> None:
    tables = Tables()
    a, b = bare_sequence([1]), bare_sequence([2])
    tables.assign([a, b])
    assert tables.assign([b, a]) == ([1, 0], 0)


def test_blocks_after_a_preemption_are_written_anew() -> None:
    tables = Tables()
    a = bare_sequence([1, 2, 3])
    tables.assign([a])
    a.block_ids = [8, 2]
    assert tables.assign([a]) == ([0], 2)


def test_random_batches(seed: int) -> None:
    tables = Tables()
    for batch in random_batches(random.Random(seed), num_columns=NUM_COLUMNS):
        tables.assign(batch)
