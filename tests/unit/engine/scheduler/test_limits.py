"""Why chunks and proposals had no more tokens is counted with their sequence."""

from collections.abc import Sequence as SequenceOf

import pytest
from support.engine_driver import make_request
from support.forcing_mask import ForcingMask
from support.imaginary_model import VOCAB_SIZE, AlwaysRight
from support.scheduled_steps import add
from support.scheduler_simulation import Simulation, make_simulation

from pagoda_engine import SamplingParams, StepCost
from pagoda_engine.scheduler import Sequence
from pagoda_engine.scheduler.limits import (
    ACCEPTANCE,
    END_OF_OUTPUT,
    END_OF_PROMPT,
    GRAMMAR,
    LOAD,
    NOTHING_FOUND,
    ROOM,
    SETTING,
    STEP_TIME,
    STEP_TOKENS,
    TENANT_SHARE,
    Limits,
)
from pagoda_engine.token_mask import TokenBits, token_bits

CHEAP = StepCost(base=8.0, per_decode=1.0, per_prefill_token=0.35, per_proposed_token=0.05)


class FindsNothing:
    def propose(self, max_tokens: int) -> SequenceOf[int]:
        return ()


class AlwaysWrong(AlwaysRight):
    def propose(self, max_tokens: int) -> SequenceOf[int]:
        return [(token + 1) % 50 for token in super().propose(max_tokens)]


class AlwaysForty:
    def propose(self, max_tokens: int) -> SequenceOf[int]:
        return [40] * max_tokens


class BelowForty(ForcingMask):
    vocab_size = VOCAB_SIZE

    def forced(self, output_token_ids: SequenceOf[int]) -> SequenceOf[int]:
        return ()

    def bitmask(self, output_token_ids: SequenceOf[int]) -> TokenBits:
        return token_bits(range(40), self.vocab_size)


def run(simulation: Simulation) -> None:
    while simulation.has_work():
        simulation.step()


def speculating(cost: StepCost = CHEAP, **fields: object) -> Simulation:
    values = {"make_proposer": AlwaysRight, "num_blocks": 400, "num_speculative_tokens": 4}
    simulation = make_simulation(**{**values, **fields})
    simulation.scheduler.step_cost = cost
    return simulation


def decoded(simulation: Simulation, max_tokens: int = 30, **fields: object) -> Sequence:
    """Return a sequence of so many tokens that has ended."""
    sampling = SamplingParams(max_tokens=max_tokens)
    request = make_request("a", [5, 6, 7], block_size=4, sampling=sampling, **fields)
    sequence = simulation.add(request)
    sequence.stop_token_ids = frozenset()
    run(simulation)
    return sequence


def test_a_prompt_that_fits_ends_its_chunk() -> None:
    simulation = make_simulation()
    sequence = add(simulation, "a", 10)
    run(simulation)
    assert sequence.chunk_limits == {END_OF_PROMPT: 1}


def test_a_step_has_so_many_tokens() -> None:
    simulation = make_simulation(max_num_batched_tokens=8)
    sequence = add(simulation, "a", 20)
    run(simulation)
    assert sequence.chunk_limits == {STEP_TOKENS: 2, END_OF_PROMPT: 1}


def test_who_decodes_beside_a_long_prompt_waits_no_longer_than_predicted() -> None:
    simulation = make_simulation(num_blocks=64, max_num_batched_tokens=24)
    simulation.scheduler.step_cost = StepCost(base=1.0, per_decode=1.0, per_prefill_token=1.0)
    add(simulation, "decode", 4, max_tokens=40)
    simulation.step()
    sequence = add(simulation, "long", 50, first_token=1)
    run(simulation)
    # 16 tokens at least, whatever a step takes.
    assert sequence.chunk_limits == {STEP_TIME: 3, END_OF_PROMPT: 1}


def test_a_tenant_has_its_share_of_a_step() -> None:
    simulation = make_simulation(num_blocks=64, max_num_batched_tokens=24)
    simulation.scheduler.step_cost = StepCost(base=1.0, per_decode=1.0, per_prefill_token=1.0)
    add(simulation, "few", 4, max_tokens=40, tenant=b"few")
    simulation.step()
    sequence = add(simulation, "many", 20, first_token=1, tenant=b"many")
    run(simulation)
    assert sequence.chunk_limits.keys() == {TENANT_SHARE, END_OF_PROMPT}


def test_a_step_that_is_not_computed_counts_nothing() -> None:
    simulation = make_simulation(max_num_batched_tokens=8)
    sequence = add(simulation, "a", 20)
    simulation.step()
    simulation.scheduler.schedule()
    simulation.scheduler.not_computed()
    assert sequence.chunk_limits == {STEP_TOKENS: 1}
    run(simulation)
    assert sequence.chunk_limits == {STEP_TOKENS: 2, END_OF_PROMPT: 1}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {SETTING, END_OF_OUTPUT}),
        ({"make_proposer": lambda *_: FindsNothing()}, {NOTHING_FOUND}),
        ({"make_proposer": AlwaysWrong}, {SETTING, ACCEPTANCE, END_OF_OUTPUT}),
        ({"cost": StepCost(per_proposed_token=50.0)}, {LOAD}),
        ({"max_num_batched_tokens": 3}, {SETTING, ROOM, END_OF_OUTPUT}),
    ],
    ids=["all", "nothing", "wrong", "dear", "small steps"],
)
def test_a_proposal_says_why_it_is_no_longer(fields: dict, expected: set[str]) -> None:
    limits = decoded(speculating(**fields)).proposal_limits
    assert limits.keys() == expected


def test_a_full_batch_has_no_row_for_a_proposal() -> None:
    simulation = speculating(max_num_seqs=6, max_model_len=12)
    sequences = [add(simulation, str(i), 2, max_tokens=10, first_token=i) for i in range(6)]
    for _ in range(6):
        simulation.step()
    assert [s.proposal_limits for s in sequences] == [{LOAD: 1}] * 6


def test_a_short_output_under_load_says_so_at_its_end() -> None:
    """Of who is there for too short a time to be looked at."""
    simulation = speculating(StepCost(per_proposed_token=50.0))
    first = add(simulation, "first", 2, max_tokens=40)
    for _ in range(5):
        simulation.step()
    second = add(simulation, "second", 2, max_tokens=3, first_token=1)
    second.stop_token_ids = first.stop_token_ids = frozenset()
    run(simulation)
    assert second.proposal_limits == {LOAD: 1}
    assert 1 <= first.proposal_limits[LOAD] <= 5, "now and then, not in each step"


def test_a_grammar_cuts_what_it_refuses() -> None:
    simulation = speculating(make_proposer=lambda *_: AlwaysForty())
    sequence = decoded(simulation, token_mask=BelowForty())
    assert sequence.proposal_limits[GRAMMAR] > 0
    assert sequence.num_proposed_tokens == 0


def test_the_first_token_and_the_end_bring_them() -> None:
    simulation = speculating(max_num_batched_tokens=8)
    sequence = add(simulation, "a", 12, max_tokens=20)
    sequence.stop_token_ids = frozenset()
    run(simulation)
    found: list[tuple[Limits, Limits] | None] = [o.limits for o in simulation.outputs["a"]]
    assert found[0] == ({STEP_TOKENS: 1, END_OF_PROMPT: 1}, {})
    assert not any(found[1:-1])
    assert found[-1] == (sequence.chunk_limits, sequence.proposal_limits)
    assert SETTING in sequence.proposal_limits
