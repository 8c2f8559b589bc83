"""How a preempted sequence gets its KV back: by predicted cost, computed or fetched."""

import itertools
from dataclasses import replace

import pytest
from support.engine_driver import make_request
from support.imaginary_model import expected_output
from support.scheduler_simulation import Simulation, make_simulation

from pagoda_engine import Preemption, Resumption, SamplingParams, SequenceRequest, StepCost
from pagoda_engine.scheduler import Sequence, SequenceState

NUM_BLOCKS, BLOCK_SIZE, MAX_LEN = 6, 4, 24
COST = StepCost(base=8.0, per_decode=1.0, per_prefill_token=1.0)
# Three blocks of 4 tokens take 12 to compute, and 5.5 or 13 to fetch.
FETCHES = replace(COST, fetch_base=1.0, per_fetched_block=1.5)
COMPUTES = replace(COST, fetch_base=1.0, per_fetched_block=4.0)


def requests(**fields: int) -> list[SequenceRequest]:
    """Two of 8 tokens and 9 more, none of which is an end: together too many for the pool."""
    sampling = SamplingParams(max_tokens=9, **fields)  # type: ignore[arg-type]
    found = (
        make_request(str(first), [first, *range(10, 17)], block_size=BLOCK_SIZE, sampling=sampling)
        for first in range(40)
    )
    return list(itertools.islice((r for r in found if len(expected_output(r, MAX_LEN)) == 9), 2))


class Pair:
    """Of two sequences the younger one is preempted, and finds nothing cached afterwards."""

    def __init__(self, cost: StepCost, *, stays_cached: bool = False, **fields: int) -> None:
        self.stays_cached = stays_cached
        self.simulation: Simulation = make_simulation(num_blocks=NUM_BLOCKS, max_model_len=MAX_LEN)
        self.simulation.scheduler.step_cost = cost
        self.sequences = [self.simulation.add(request) for request in requests(**fields)]
        self.preempted: list[Preemption] = []
        self.resumed: list[Resumption] = []

    @property
    def younger(self) -> Sequence:
        return self.sequences[1]

    def step(self) -> None:
        scheduled = self.simulation.step()
        self.preempted += scheduled.preempted
        self.resumed += scheduled.resumed
        if self.preempted and not self.resumed and not self.stays_cached:
            pool = self.simulation.pool
            taken = pool.allocate((), pool.num_free_blocks)
            assert taken is not None
            pool.free(taken)

    def until_resumed(self) -> Resumption:
        """Return how the younger one goes on, after the older one's growth."""
        while not self.resumed:
            self.step()
        return self.resumed[0]

    def finish(self) -> None:
        while self.simulation.has_work():
            self.step()
        for sequence in self.sequences:
            found = self.simulation.tokens(sequence.sequence_id)
            assert found == expected_output(sequence.request, MAX_LEN)


def test_what_is_sooner_fetched_is_fetched() -> None:
    pair = Pair(FETCHES)
    resumption = pair.until_resumed()

    (preemption,) = pair.preempted
    assert preemption.is_worth_keeping
    assert resumption.fetched == tuple(block_hash for block_hash, _ in preemption.blocks)
    assert (resumption.fetch_cost, resumption.compute_cost) == (5.5, 12.0)
    assert pair.younger.state is SequenceState.IMPORTING
    pair.simulation.finish_import(pair.younger, 12)
    assert pair.younger.num_uncomputed_tokens < BLOCK_SIZE + 1
    pair.finish()


def test_what_is_sooner_computed_is_computed() -> None:
    pair = Pair(FETCHES)
    while not pair.preempted:
        pair.step()
    pair.simulation.scheduler.step_cost = COMPUTES  # the tier below has become slower
    resumption = pair.until_resumed()

    assert resumption.num_lower_blocks == 3
    assert resumption.fetched == ()
    assert (resumption.fetch_cost, resumption.compute_cost) == (13.0, 12.0)
    assert pair.younger.state is SequenceState.RUNNING
    pair.finish()


@pytest.mark.parametrize(
    "cost",
    [COST, COMPUTES, replace(FETCHES, per_fetched_block=1.7)],
    ids=["nothing below", "slow", "not twice as fast"],
)
def test_what_is_sooner_computed_is_not_kept(cost: StepCost) -> None:
    pair = Pair(cost)
    resumption = pair.until_resumed()

    assert not pair.preempted[0].is_worth_keeping
    assert not pair.simulation.lower
    assert resumption.num_lower_blocks == 0
    pair.finish()


def test_a_fetch_that_brings_less_leaves_the_rest_to_be_computed() -> None:
    pair = Pair(FETCHES)
    pair.until_resumed()
    pair.simulation.finish_import(pair.younger, BLOCK_SIZE)
    pair.finish()


def test_only_what_is_not_cached_any_more_is_fetched() -> None:
    pair = Pair(replace(COST, per_fetched_block=1.0), stays_cached=True)
    resumption = pair.until_resumed()
    hashes = tuple(block_hash for block_hash, _ in pair.preempted[0].blocks)

    num_cached = resumption.num_cached_tokens // BLOCK_SIZE
    assert 0 < num_cached < 3, "the last blocks are the first to go"
    assert resumption.fetched == hashes[num_cached:]
    assert resumption.compute_cost == BLOCK_SIZE * (3 - num_cached)
    pair.simulation.finish_import(pair.younger, 3 * BLOCK_SIZE)
    pair.finish()


def test_a_prompt_that_is_scored_is_computed_again() -> None:
    pair = Pair(FETCHES, num_prompt_logprobs=0)
    assert pair.until_resumed().fetched == ()


def test_an_abort_while_blocks_are_fetched_frees_them() -> None:
    pair = Pair(FETCHES)
    pair.until_resumed()
    pair.simulation.scheduler.finish(pair.younger)
    pair.simulation.scheduler.check_invariants()
    pair.sequences.pop()
    pair.finish()
    assert pair.simulation.pool.num_free_blocks == NUM_BLOCKS
