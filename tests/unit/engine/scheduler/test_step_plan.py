"""What is in a step: whose tokens, and how many."""

from dataclasses import replace

import pytest
from support.imaginary_model import ForcesRuns, expected_output
from support.scheduled_steps import add, batch_of
from support.scheduler_simulation import make_simulation

from pagoda_engine.scheduler import SequenceState
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.step_plan import LONG_STEP


def test_prompt_is_computed_in_one_step_and_then_token_by_token() -> None:
    simulation = make_simulation()
    add(simulation, "a", 10)
    assert batch_of(simulation) == {"a": 10}
    assert batch_of(simulation) == {"a": 1}


def test_prompt_longer_than_the_budget_is_chunked() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    add(simulation, "a", 10)
    assert [batch_of(simulation) for _ in range(4)] == [{"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}]


def test_last_chunk_of_one_token_is_prefill() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    add(simulation, "a", 5)
    kinds = [[s.is_prefill for s in simulation.step().batch] for _ in range(3)]
    assert kinds == [[True], [True], [False]]


def test_decodes_come_before_prefills() -> None:
    simulation = make_simulation(max_num_batched_tokens=5)
    add(simulation, "a", 5)
    simulation.step()
    add(simulation, "b", 9, first_token=1)
    assert batch_of(simulation) == {"a": 1, "b": 4}
    assert batch_of(simulation) == {"a": 1, "b": 4}
    assert batch_of(simulation) == {"a": 1, "b": 1}


def test_budget_is_never_exceeded() -> None:
    simulation = make_simulation(max_num_batched_tokens=3)
    for i in range(6):
        add(simulation, str(i), 7, first_token=i)
    for _ in range(40):
        assert sum(batch_of(simulation).values()) <= 3


def test_a_long_prompt_beside_decodes_makes_steps_little_longer() -> None:
    simulation = make_simulation(max_num_batched_tokens=64, num_blocks=64)
    simulation.scheduler.step_cost = StepCost(base=8.0, per_decode=2.0, per_prefill_token=0.25)
    add(simulation, "short", 20, max_tokens=12)
    add(simulation, "other", 20, first_token=1, max_tokens=12)
    simulation.step()
    add(simulation, "long", 150, first_token=2)
    # A step of two decodes takes 12; 40 tokens of a prompt take 0.85 of that.
    assert batch_of(simulation) == {"short": 1, "other": 1, "long": 40}
    add(simulation, "fits", 14, first_token=3)
    assert batch_of(simulation) == {"short": 1, "other": 1, "long": 40, "fits": 14}
    simulation.scheduler.finish(simulation.scheduler.get("short"))
    simulation.scheduler.finish(simulation.scheduler.get("other"))
    simulation.scheduler.finish(simulation.scheduler.get("fits"))
    assert batch_of(simulation) == {"long": 64}  # nobody waits for it


FAR = StepCost(base=58.0, per_decode=2.0, per_prefill_token=0.1, per_attended_token=0.03)


@pytest.mark.parametrize("cost", [FAR, replace(FAR, per_context_token=0.2)])
def test_chunks_of_a_long_prompt_shrink_as_their_tokens_attend_to_more(cost: StepCost) -> None:
    simulation = make_simulation(max_num_batched_tokens=64, num_blocks=100, max_model_len=300)
    simulation.scheduler.step_cost = cost
    add(simulation, "short", 20, max_tokens=100)
    simulation.step()
    add(simulation, "long", 200, first_token=2)
    chunks, done = list[int](), 0
    while done < 200:
        chunks.append(batch_of(simulation)["long"])
        # A step of a decode takes 60; the prompt takes no more than is left, and one more would.
        most = (LONG_STEP - 1) * 60 * (1 + 1e-9)
        assert cost.of_prompt(done, chunks[-1]) <= most
        assert cost.of_prompt(done, chunks[-1] + 1) > most or done + chunks[-1] == 200
        done += chunks[-1]
    assert chunks[:-1] == sorted(chunks[:-1], reverse=True)
    assert chunks[0] > 5 * chunks[-2]


@pytest.mark.parametrize("name", ["per_attended_token", "per_context_token"])
def test_a_chunk_is_of_a_token_however_much_it_attends_to(name: str) -> None:
    simulation = make_simulation(max_num_batched_tokens=64, num_blocks=100, max_model_len=300)
    cost = StepCost(base=1.0, per_decode=1.0, per_prefill_token=0.1)
    simulation.scheduler.step_cost = replace(cost, **{name: 100.0})
    add(simulation, "short", 20, max_tokens=100)
    simulation.step()
    add(simulation, "long", 200, first_token=2)
    for _ in range(30):
        assert batch_of(simulation)["long"] >= 1
    assert batch_of(simulation)["long"] == 1


def test_few_tokens_behind_a_long_cached_prefix_are_a_long_prompt() -> None:
    simulation = make_simulation(max_num_batched_tokens=32, num_blocks=200, max_model_len=300)
    simulation.scheduler.step_cost = FAR
    add(simulation, "before", 200, first_token=2, max_tokens=1)
    while simulation.has_work():
        simulation.step()
    add(simulation, "short", 20, max_tokens=100)
    simulation.step()
    add(simulation, "again", 225, first_token=2)
    assert batch_of(simulation) == {"short": 1, "again": 8}


def test_no_prompt_joins_a_step_that_has_enough() -> None:
    simulation = make_simulation(max_num_batched_tokens=64, enough_prompt_tokens=16, num_blocks=64)
    for number, size in enumerate((10, 10, 40, 10)):
        add(simulation, f"s{number}", size, first_token=number)
    assert batch_of(simulation) == {"s0": 10, "s1": 10}
    assert batch_of(simulation) == {"s0": 1, "s1": 1, "s2": 40}
    assert batch_of(simulation) == {"s0": 1, "s1": 1, "s2": 1, "s3": 10}


def test_forced_tokens_come_out_of_what_the_decodes_leave() -> None:
    simulation = make_simulation(max_num_batched_tokens=5)
    add(simulation, "a", 2, max_tokens=40, token_mask=ForcesRuns(2))
    add(simulation, "b", 2, first_token=1, max_tokens=40)
    batches = [batch_of(simulation) for _ in range(7)]
    assert batches[:2] == [{"a": 2, "b": 2}, {"a": 1, "b": 1}]
    assert batches[2:] == [{"a": 4, "b": 1}] * 3 + [{"a": 3, "b": 1}, {"a": 1, "b": 1}]
    assert len(simulation.tokens("a")) == 32
    assert len(simulation.tokens("b")) == 7


def test_prefills_get_what_forced_tokens_leave() -> None:
    simulation = make_simulation(max_num_batched_tokens=20)
    add(simulation, "a", 2, max_tokens=40, token_mask=ForcesRuns(1))
    simulation.step()
    add(simulation, "b", 9, first_token=1)
    assert batch_of(simulation) == {"a": 16, "b": 4}


def test_forced_tokens_take_all_their_blocks_at_once() -> None:
    simulation = make_simulation(num_blocks=6, max_num_batched_tokens=12)
    old = add(simulation, "old", 3, max_tokens=20, token_mask=ForcesRuns(1))
    young = add(simulation, "young", 8, first_token=1, max_tokens=12)
    assert batch_of(simulation) == {"old": 3, "young": 8}
    assert batch_of(simulation) == {"old": 12}  # the other one's token too
    assert (len(old.block_ids), young.state) == (5, SequenceState.WAITING)
    for _ in range(60):
        simulation.step()
    assert simulation.tokens("old") == expected_output(old.request, 64)
    assert simulation.tokens("young") == expected_output(young.request, 64)
