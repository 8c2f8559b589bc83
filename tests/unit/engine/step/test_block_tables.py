import random

from support.bare_sequence import bare_sequence, random_batches

from pagoda_engine.scheduler import Sequence
from pagoda_engine.step.block_tables import BlockTables

NUM_COLUMNS = 9


def assert_tables(tables: BlockTables, sequences: list[Sequence]) -> None:
    found = tables.of(sequences)
    assert len(found) == len(sequences)
    assert found.flags.c_contiguous
    for row, sequence in zip(found.tolist(), sequences, strict=True):
        assert row[: len(sequence.block_ids)] == sequence.block_ids


def test_what_a_step_was_given_stays() -> None:
    tables = BlockTables(NUM_COLUMNS)
    a, b = bare_sequence([3, 4]), bare_sequence([5])
    before = tables.of([a, b])
    a.block_ids = [7, 8, 9]
    assert_tables(tables, [b, a])

    assert before[0].tolist() == [3, 4]
    assert before[1, 0] == 5


def test_no_sequence_has_no_table() -> None:
    assert BlockTables(NUM_COLUMNS).of([]).shape == (0, 0)


def test_random_batches(seed: int) -> None:
    tables = BlockTables(NUM_COLUMNS)
    for batch in random_batches(random.Random(seed), num_columns=NUM_COLUMNS):
        assert_tables(tables, batch)
