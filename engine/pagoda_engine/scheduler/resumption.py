"""What a sequence loses when it is preempted, and how it gets it back: computed, or fetched.

A lower tier is whatever keeps blocks by their hashes beside the pool. Knows hashes and what steps
cost. Knows nothing of queues, and not where a tier is.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.step_cost import StepCost

NUM_TRIPS = 2
"""Of a block that is written to a lower tier and fetched: taken to be as fast either way."""

MatchLower = Callable[[SequenceOf[bytes]], int]
"""Block hashes -> how many leading ones a lower tier has; called in the step's thread."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """A sequence lost its blocks. Full ones stay cached until somebody needs their place.

    Attributes:
        sequence_id: whose they were.
        blocks: (block hash, block id) of full ones, in order.
        is_worth_keeping: to write them to a lower tier and fetch them takes less than to compute
            them.
        cause: why it was to give them up.
    """

    sequence_id: str
    blocks: tuple[tuple[bytes, int], ...]
    is_worth_keeping: bool
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A preempted sequence has blocks again: those still cached, and others to be filled.

    Attributes:
        sequence_id: whose they are.
        block_ids: as in `Reservation`.
        num_cached_tokens: as in `Reservation`.
        fetched: hashes of the blocks from there on that the caller is to fetch, before
            `Engine.import_finished`; empty: the engine computes, and waits for nobody.
        num_lower_blocks: that the lower tier has of what follows.
        fetch_cost: to fetch these, as predicted; in the unit of the `StepCost`.
        compute_cost: to compute these.
    """

    sequence_id: str
    block_ids: tuple[int, ...]
    num_cached_tokens: int
    fetched: tuple[bytes, ...]
    num_lower_blocks: int
    fetch_cost: float
    compute_cost: float


def preemption(sequence: Sequence, block_size: int, cost: StepCost, *, cause: str) -> Preemption:
    """Return what a running sequence is about to lose, and why."""
    # Where windows give blocks back it holds no prefix, and will not fetch one.
    is_whole = not sequence.num_null_blocks and not sequence.windowed
    num_full = sequence.num_registered_blocks if is_whole else 0
    blocks = tuple(zip(sequence.block_hashes[:num_full], sequence.block_ids, strict=False))
    compute_cost = cost.of_prompt(0, num_full * block_size)
    is_worth_keeping = num_full > 0 and NUM_TRIPS * cost.of_fetch(num_full) < compute_cost
    return Preemption(sequence.sequence_id, blocks, is_worth_keeping, cause)


def resumption(
    sequence: Sequence, blocks: SequenceBlocks, cost: StepCost, match_lower: MatchLower | None
) -> Resumption:
    """Choose how a sequence that has blocks again gets what they are to hold."""
    missing = blocks.missing_hashes(sequence)
    num_lower = match_lower(missing) if match_lower is not None and missing else 0
    fetch_cost = cost.of_fetch(num_lower)
    num_cached = sequence.num_cached_tokens
    compute_cost = cost.of_prompt(num_cached, num_lower * blocks.block_size)
    return Resumption(
        sequence_id=sequence.sequence_id,
        block_ids=tuple(sequence.block_ids),
        num_cached_tokens=num_cached,
        fetched=tuple(missing[:num_lower]) if fetch_cost < compute_cost else (),
        num_lower_blocks=num_lower,
        fetch_cost=fetch_cost,
        compute_cost=compute_cost,
    )
