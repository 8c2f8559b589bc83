"""How much a step verifies: by what it costs, and by what others need."""

from collections.abc import Sequence as SequenceOf

import pytest
from support.engine_driver import make_request
from support.imaginary_model import AlwaysRight
from support.scheduler_simulation import Simulation, make_simulation

from pagoda_engine import SamplingParams, StepCost
from pagoda_engine.scheduler import Sequence
from pagoda_engine.speculation.guesses import MAX_RESTS

CHEAP = StepCost(base=8.0, per_decode=1.0, per_prefill_token=0.35, per_proposed_token=0.05)


class AlwaysWrong(AlwaysRight):
    def propose(self, max_tokens: int) -> SequenceOf[int]:
        return [(token + 1) % 50 for token in super().propose(max_tokens)]


class RightAboutFirst(AlwaysRight):
    """Of the first arrival alone; the others' proposals are wrong."""

    def propose(self, max_tokens: int) -> SequenceOf[int]:
        proposed = super().propose(max_tokens)
        return proposed if self.token_ids[0] == 0 else [(token + 1) % 50 for token in proposed]


def speculating(*, cost: StepCost = CHEAP, **fields: object) -> Simulation:
    values = {"make_proposer": AlwaysRight, "num_blocks": 400, "max_num_seqs": 16}
    simulation = make_simulation(**{**values, **fields})
    simulation.scheduler.step_cost = cost
    return simulation


def add(simulation: Simulation, name: str, *, num_prompt: int = 4, **fields: object) -> Sequence:
    prompt = [simulation.num_arrivals % 49, *[7] * (num_prompt - 1)]
    sampling = SamplingParams(max_tokens=50, ignore_eos=True)
    request = make_request(name, prompt, block_size=4, sampling=sampling, **fields)
    return simulation.add(request)


def num_proposed(simulation: Simulation) -> dict[str, int]:
    return {e.sequence.sequence_id: len(e.proposed) for e in simulation.step().batch}


def settled(simulation: Simulation, num_steps: int = 4) -> dict[str, int]:
    """Return what is verified once it is known how right proposals are."""
    for _ in range(num_steps):
        simulation.step()
    return num_proposed(simulation)


def test_right_proposals_are_all_verified() -> None:
    simulation = speculating()
    add(simulation, "a")
    assert settled(simulation) == {"a": 7}


def test_wrong_proposals_are_verified_no_more() -> None:
    simulation = speculating(make_proposer=AlwaysWrong, cost=StepCost())
    add(simulation, "a")
    counts = [num_proposed(simulation)["a"] for _ in range(50)]
    assert counts[1] > 0
    assert sum(counts) < 30, counts
    assert not any(counts[-MAX_RESTS:])


@pytest.mark.parametrize(("per_proposed_token", "expected"), [(0.01, 4), (6.0, 0)])
def test_a_dear_row_is_not_worth_a_guess(per_proposed_token: float, expected: int) -> None:
    cost = StepCost(per_proposed_token=per_proposed_token)
    simulation = speculating(cost=cost, num_speculative_tokens=4)
    add(simulation, "a")
    simulation.step()
    assert num_proposed(simulation) == {"a": expected}, "half of what is proposed may be right"


@pytest.mark.parametrize(("make_proposer", "most"), [(AlwaysRight, 28), (RightAboutFirst, 0)])
def test_what_all_need_anyway_is_saved_by_all_or_by_nobody(
    make_proposer: type[AlwaysRight], most: int
) -> None:
    # A right token saves 3 where all four propose, of the 12 that a step takes; but where one of
    # them does, the others need their steps, and it saves little more than its decode: 1.1.
    simulation = speculating(
        make_proposer=make_proposer, cost=StepCost(per_proposed_token=1.2), max_num_seqs=64
    )
    for name in "abcd":
        add(simulation, name)
    assert max(sum(num_proposed(simulation).values()) for _ in range(50)) == most


def test_rows_are_those_of_the_limit() -> None:
    simulation = speculating(max_num_seqs=10)
    for name in "abcdefgh":
        add(simulation, name)
    assert sum(settled(simulation, 2).values()) == 2


def test_one_sequence_at_a_time_may_speculate_all_the_same() -> None:
    simulation = speculating(max_num_seqs=1)
    add(simulation, "a")
    assert settled(simulation) == {"a": 7}


def test_prompts_keep_half_of_the_tokens() -> None:
    simulation = speculating(max_num_batched_tokens=9)
    add(simulation, "a")
    simulation.step()
    add(simulation, "b", num_prompt=40)
    batch = {e.sequence.sequence_id: e for e in simulation.step().batch}
    assert len(batch["a"].proposed) <= 4
    assert batch["b"].num_new_tokens == 9 - batch["a"].num_new_tokens


def test_no_block_is_taken_while_others_wait_for_one() -> None:
    simulation = speculating(num_blocks=10, max_model_len=40)
    first = add(simulation, "a", num_prompt=3)
    simulation.step()
    add(simulation, "b", num_prompt=38)
    for _ in range(6):
        num_needed = -(-first.num_tokens // 4)
        simulation.step()
        assert len(first.block_ids) <= max(num_needed, -(-first.num_tokens // 4))


def test_beside_another_tenant_only_time_that_nobody_claims_is_used() -> None:
    slow = StepCost(base=1.0, per_decode=1.0, per_prefill_token=1.0, per_proposed_token=0.4)
    simulation = speculating(cost=slow)
    for name in "abc":
        add(simulation, name, tenant=b"many")
    alone = settled(simulation)
    assert min(alone.values()) >= 4
    add(simulation, "few", tenant=b"few")
    for _ in range(10):
        batch = simulation.step().batch
        decodes = sum(not e.is_prefill for e in batch)
        proposed = sum(len(e.proposed) for e in batch)
        if decodes == len(batch):
            # 1.75 times what the lighter of the two would take alone.
            assert slow.of(num_decodes=decodes, num_prefill_tokens=0) + 0.4 * proposed <= 3.5


def test_a_preempted_sequence_holds_no_proposer() -> None:
    simulation = speculating(num_blocks=8, max_num_seqs=4, max_model_len=32)
    sequences = [add(simulation, name) for name in "abc"]
    while not simulation.num_preempted:
        simulation.step()
    assert any(s.guesses is None for s in sequences)
    while simulation.scheduler.has_work():
        simulation.step()
    assert simulation.pool.num_free_blocks == 8
    assert all(s.guesses is None for s in sequences)
