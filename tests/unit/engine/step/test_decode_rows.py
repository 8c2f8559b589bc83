import random

import torch

from pagoda_engine import SamplingParams, SequenceRequest
from pagoda_engine.sampling import SamplingState
from pagoda_engine.scheduler import Sequence
from pagoda_engine.step.decode_rows import DecodeRows

NUM_COLUMNS = 9


class Tables:
    """Block tables as the device has them; every row is compared with its sequence's blocks."""

    def __init__(self) -> None:
        self.rows = DecodeRows(NUM_COLUMNS)
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


def make_sequence(block_ids: list[int]) -> Sequence:
    params = SamplingParams(max_tokens=5)
    request = SequenceRequest("x", (1,), (), bytes(16), params)
    sequence = Sequence(
        request,
        1,
        max_model_len=99,
        sampling_state=SamplingState(params, eos_token_ids=()),
        is_import_pending=False,
    )
    sequence.block_ids = block_ids
    return sequence


def test_only_new_blocks_are_written() -> None:
    tables = Tables()
    a, b = make_sequence([3, 4]), make_sequence([5])
    assert tables.assign([a, b]) == ([0, 1], 3)
    assert tables.assign([a, b]) == ([0, 1], 0)
    b.block_ids.append(7)
    assert tables.assign([a, b]) == ([0, 1], 1)


def test_a_row_that_is_left_goes_to_the_last_one() -> None:
    tables = Tables()
    a, b, c = (make_sequence([i, i + 10]) for i in range(3))
    tables.assign([a, b, c])
    assert tables.assign([b, c]) == ([1, 0], 2)


def test_order_of_the_batch_does_not_matter() -> None:
    tables = Tables()
    a, b = make_sequence([1]), make_sequence([2])
    tables.assign([a, b])
    assert tables.assign([b, a]) == ([1, 0], 0)


def test_blocks_after_a_preemption_are_written_anew() -> None:
    tables = Tables()
    a = make_sequence([1, 2, 3])
    tables.assign([a])
    a.block_ids = [8, 2]
    assert tables.assign([a]) == ([0], 2)


def test_random_batches(seed: int) -> None:
    rng, tables, alive = random.Random(seed), Tables(), []
    for _ in range(300):
        while len(alive) < rng.randint(1, 14):
            alive.append(make_sequence([rng.randrange(99)]))
        for sequence in alive:
            if rng.random() < 0.2 and len(sequence.block_ids) < NUM_COLUMNS:
                sequence.block_ids.append(rng.randrange(99))
            if rng.random() < 0.05:
                sequence.block_ids = [rng.randrange(99) for _ in range(rng.randint(1, NUM_COLUMNS))]
        tables.assign(rng.sample(alive, rng.randint(1, len(alive))))
        alive = [sequence for sequence in alive if rng.random() < 0.9]
