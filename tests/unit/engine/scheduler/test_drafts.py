"""Whom a draft proposes for, and when: by what it takes, what it saves, and how right it is."""

import random
from collections.abc import Sequence as SequenceOf

import pytest
from support.engine_driver import make_request
from support.imaginary_model import AlwaysRight
from support.scheduler_simulation import Simulation, make_simulation
from support.simulated_drafter import SimulatedDrafter

from pagoda_engine import SamplingParams, StepCost
from pagoda_engine.scheduler import Sequence
from pagoda_engine.scheduler.proposing.drafts import CREDIT_STEPS, MIN_CHUNK, PROBE_SHARE

COST = StepCost(8.0, 1.0, 0.35, 0.2, is_seconds=True)


class Silent:
    """Proposes nothing."""

    def __init__(self, token_ids: SequenceOf[int], max_num_tokens: int) -> None:
        pass

    def propose(self, max_tokens: int) -> SequenceOf[int]:
        return ()


def drafted(drafter: SimulatedDrafter, *, cost: StepCost = COST, **fields: object) -> Simulation:
    values = {"make_proposer": Silent, "num_blocks": 1000, "max_num_seqs": 16}
    simulation = make_simulation(**{**values, "max_model_len": 4000, **fields}, drafter=drafter)
    simulation.scheduler.step_cost = cost
    return simulation


def add(
    simulation: Simulation,
    name: str,
    *,
    num_prompt: int = 4,
    max_tokens: int = 50,
    **fields: object,
) -> Sequence:
    prompt = [simulation.num_arrivals % 49, *[7] * (num_prompt - 1)]
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = make_request(name, prompt, block_size=4, sampling=sampling, **fields)
    return simulation.add(request)


def run(simulation: Simulation) -> int:
    """Return how many steps it took to the end."""
    num_steps = 0
    while simulation.has_work():
        simulation.step()
        num_steps += 1
    return num_steps


def test_a_cheap_draft_that_is_right_is_asked_for_as_much_as_there_is() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.01)
    simulation = drafted(drafter)
    add(simulation, "a", max_tokens=100)
    assert run(simulation) < 25
    assert drafter.batches[5] == [7]
    assert drafter.computed == {}


def test_all_sequences_of_a_step_are_drafted_together() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.01)
    simulation = drafted(drafter, max_num_seqs=64)
    for name in "abcd":
        add(simulation, name)
    run(simulation)
    assert max(map(len, drafter.batches)) == 4


@pytest.mark.parametrize(("base", "right"), [(20.0, 1.0), (0.1, 0.0), (4.0, 0.5)])
def test_a_draft_that_does_not_pay_takes_little_time(base: float, right: float) -> None:
    """Too dear, always wrong, or both a little."""
    drafter = SimulatedDrafter(base=base, per_token=base / 100, right=right)
    simulation = drafted(drafter)
    for name in "ab":
        add(simulation, name, max_tokens=1500)
    num_steps = run(simulation)
    elapsed = num_steps * COST.of(num_decodes=2, num_prefill_tokens=0)
    assert drafter.seconds < (PROBE_SHARE + 0.005) * elapsed + 8 * drafter.time.of(2)


@pytest.mark.parametrize("right", [0.4, 0.5, 0.6])
def test_a_draft_that_costs_more_than_is_known_loses_little(right: float) -> None:
    """What it takes beside its forwards is in no prediction, but it is counted."""
    drafter = SimulatedDrafter(base=0.2, per_token=0.002, right=right, overhead=9.0)
    simulation = drafted(drafter)
    sequences = [add(simulation, name, max_tokens=1500) for name in "ab"]
    num_steps = run(simulation)
    step = COST.of(num_decodes=2, num_prefill_tokens=0)
    saved = COST.base / 2 + COST.per_decode
    costs = drafter.seconds + COST.per_proposed_token * simulation.num_proposed
    lost = costs - saved * sum(sequence.num_accepted_tokens for sequence in sequences)
    assert max(map(len, drafter.batches)) == 2, "it seemed to pay"
    # And what one step's drafts take, which nobody knew before.
    assert lost < (CREDIT_STEPS + 4) * step + 2 * PROBE_SHARE * step * num_steps


def test_a_draft_that_becomes_right_is_switched_on_again() -> None:
    drafter = SimulatedDrafter(base=0.2, per_token=0.01, right=0.0)
    simulation = drafted(drafter)
    add(simulation, "a", max_tokens=3000)
    for _ in range(500):
        simulation.step()
    num_before = len(drafter.batches)
    drafter.right = 1.0
    num_steps = run(simulation)
    assert drafter.batches[-2] == [7]
    assert num_before < 100
    assert num_steps < 1500, "2,500 tokens"


def test_a_prompt_that_is_worth_too_little_is_caught_up_to_find_out() -> None:
    drafter = SimulatedDrafter(base=0.05, per_token=0.001)
    simulation = drafted(drafter, cost=StepCost(0.2, 0.05, 0.01, 0.05, is_seconds=True))
    add(simulation, "a", num_prompt=3000, max_tokens=900)
    run(simulation)
    assert not drafter.batches, "that would take more than half a percent of the time"
    add(simulation, "b", num_prompt=100, max_tokens=3500)
    run(simulation)
    assert drafter.batches


def test_a_unit_that_is_not_seconds_asks_nobody() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.01)
    simulation = drafted(drafter, cost=StepCost())
    add(simulation, "a")
    run(simulation)
    assert drafter.seconds == 0.0


def test_who_proposes_for_nothing_and_is_as_right_is_preferred() -> None:
    drafter = SimulatedDrafter(base=0.3, per_token=0.01)
    simulation = drafted(drafter, make_proposer=AlwaysRight)
    add(simulation, "a", max_tokens=400)
    for _ in range(10):
        simulation.step()
    num_before = len(drafter.batches)
    run(simulation)
    assert len(drafter.batches) == num_before


def test_a_prompt_is_caught_up_in_chunks_of_a_quarter_of_a_step() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.02)
    simulation = drafted(drafter)
    add(simulation, "a", num_prompt=1000, max_tokens=900)
    simulation.step()
    for _ in range(100):
        before = drafter.seconds, len(drafter.batches)
        simulation.step()
        if len(drafter.batches) == before[1]:
            assert drafter.seconds - before[0] <= 0.25 * 9.0 + 1e-9
    assert 900 < sum(drafter.chunks) <= 1010
    assert len(drafter.chunks) >= 9
    assert drafter.batches


def test_where_the_smallest_chunk_takes_longer_there_is_one_every_few_steps() -> None:
    drafter = SimulatedDrafter(base=0.01, per_token=0.25)
    simulation = drafted(drafter, cost=StepCost(8.0, 1.0, 0.35, 0.01, is_seconds=True))
    add(simulation, "a", num_prompt=70, max_tokens=900)
    simulation.step()
    for _ in range(4):
        simulation.step()
    # Four steps' quarters are 9 seconds, a chunk takes 4.
    assert drafter.chunks == [MIN_CHUNK] * 2


def test_a_prompt_is_not_caught_up_for_a_few_tokens() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.02)
    simulation = drafted(drafter)
    add(simulation, "a", num_prompt=2000, max_tokens=3)
    run(simulation)
    assert drafter.seconds == 0.0


def test_who_finds_no_room_is_not_drafted() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.01, num_blocks=1)
    simulation = drafted(drafter)
    for name in "abc":
        add(simulation, name)
    run(simulation)
    assert max(map(len, drafter.batches)) == 1


def test_rows_are_those_of_the_limit() -> None:
    drafter = SimulatedDrafter(base=0.1, per_token=0.01)
    simulation = drafted(drafter, max_num_seqs=10)
    for name in "abcdefgh":
        add(simulation, name)
    run(simulation)
    assert max(sum(nums) for nums in drafter.batches if len(nums) == 2) <= 8
    assert not any(len(nums) > 5 for nums in drafter.batches)


def test_beside_another_tenant_only_time_that_nobody_claims_is_used() -> None:
    slow = StepCost(1.0, 1.0, 1.0, 0.1, is_seconds=True)
    drafter = SimulatedDrafter(base=0.05, per_token=0.01)
    simulation = drafted(drafter, cost=slow)
    for name in "abc":
        add(simulation, name, tenant=b"many", max_tokens=200)
    for _ in range(10):
        simulation.step()
    assert sum(drafter.batches[-1]) > 5
    add(simulation, "few", tenant=b"few", max_tokens=200)
    for _ in range(30):
        before = drafter.seconds
        batch = simulation.step().batch
        decodes = sum(not entry.is_prefill for entry in batch)
        took = drafter.seconds - before + 0.1 * sum(len(entry.proposed) for entry in batch)
        if decodes == len(batch):
            # 1.75 times what the lighter of the two would take alone.
            assert slow.of(num_decodes=decodes, num_prefill_tokens=0) + took <= 3.5 + 1e-9


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("number", range(8))
def test_random_runs_keep_every_invariant(seed: int, number: int, lag: int) -> None:
    """With aborts, preemptions and imports; outputs are those of the imaginary model."""
    rng = random.Random(f"{seed} {number}")
    drafter = SimulatedDrafter(
        base=rng.choice([0.01, 1.0]),
        per_token=rng.choice([0.001, 0.05]),
        right=rng.choice([0.3, 0.9]),
        num_blocks=rng.choice([2, 100]),
        rng=rng,
    )
    simulation = drafted(
        drafter,
        lag=lag,
        num_blocks=rng.choice([24, 60]),
        max_num_seqs=rng.choice([4, 12]),
        max_num_batched_tokens=rng.choice([12, 60]),
        max_model_len=60,
    )
    sequences = []
    while len(sequences) < 30 or simulation.has_work():
        if len(sequences) < 30 and rng.random() < 0.4:
            num_prompt, tenant = rng.randint(1, 30), rng.choice([b"a", b"a", b"b"])
            name = str(len(sequences))
            sequences.append(
                add(simulation, name, num_prompt=num_prompt, tenant=tenant, max_tokens=30)
            )
        for sequence in sequences:
            if rng.random() < 0.004 and simulation.scheduler.get(sequence.sequence_id):
                simulation.scheduler.finish(sequence)
        simulation.step()
    assert drafter.computed == {}
    assert simulation.pool.num_free_blocks == simulation.config.num_blocks
    assert simulation.num_proposed > 0
