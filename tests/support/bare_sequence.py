"""Sequences that nobody schedules, for what looks at their blocks alone."""

import random
from collections.abc import Iterator

from pagoda_engine import SamplingParams, SequenceRequest
from pagoda_engine.sampling import SamplingState
from pagoda_engine.scheduler import Sequence


def bare_sequence(block_ids: list[int]) -> Sequence:
    """Return one that has these blocks."""
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


def random_batches(rng: random.Random, *, num_columns: int) -> Iterator[list[Sequence]]:
    """Yield the sequences of 300 steps, 14 at most, which come, grow, are preempted and go."""
    alive = list[Sequence]()
    for _ in range(300):
        while len(alive) < rng.randint(1, 14):
            alive.append(bare_sequence([rng.randrange(99)]))
        for sequence in alive:
            if rng.random() < 0.2 and len(sequence.block_ids) < num_columns:
                sequence.block_ids.append(rng.randrange(99))
            if rng.random() < 0.05:
                sequence.block_ids = [rng.randrange(99) for _ in range(rng.randint(1, num_columns))]
        yield rng.sample(alive, rng.randint(1, len(alive)))
        alive = [sequence for sequence in alive if rng.random() < 0.9]
