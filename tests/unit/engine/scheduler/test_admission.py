"""Who is let in, and when."""

import math

import pytest
from support.scheduled_steps import add, batch_of
from support.scheduler_simulation import make_simulation

from pagoda_engine.scheduler import SequenceState
from pagoda_engine.scheduler.admission import BLOCKS, PREFIX, SEATS, STEP_TOKENS


def test_admission_is_first_come_first_served() -> None:
    simulation = make_simulation(num_blocks=5)
    add(simulation, "small", 4)
    simulation.step()
    add(simulation, "large", 17, first_token=1)
    add(simulation, "late", 4, first_token=2)
    assert batch_of(simulation) == {"small": 1}


def test_admission_reserves_the_whole_prompt() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    sequence = add(simulation, "a", 10)
    simulation.step()
    assert len(sequence.block_ids) == 3


def test_admission_respects_max_num_seqs() -> None:
    simulation = make_simulation(max_num_seqs=2)
    for i in range(3):
        add(simulation, str(i), 4, first_token=i, max_tokens=2)
    assert batch_of(simulation) == {"0": 4, "1": 4}
    simulation.step()
    assert batch_of(simulation) == {"2": 4}


def test_a_budget_below_max_num_seqs_starves_nobody() -> None:
    simulation = make_simulation(max_num_seqs=8, max_num_batched_tokens=3)
    for i in range(6):
        add(simulation, str(i), 2, max_tokens=4, first_token=10 + i)
    simulation.step()
    for _ in range(5):
        decoding = {s.sequence_id for s in simulation.scheduler.running if s.is_decoding}
        assert decoding <= set(batch_of(simulation))


def test_admission_leaves_room_for_those_who_run() -> None:
    simulation = make_simulation(num_blocks=5)
    add(simulation, "a", 8, max_tokens=10)
    simulation.step()  # holds 2 blocks and will ask for more
    add(simulation, "b", 12, first_token=1)
    assert batch_of(simulation) == {"a": 1}


def test_sequence_as_large_as_the_pool_is_admitted_alone() -> None:
    simulation = make_simulation(num_blocks=4)
    add(simulation, "a", 13, max_tokens=3)
    assert batch_of(simulation) == {"a": 13}


def test_the_lower_priority_number_is_admitted_first_and_then_the_older() -> None:
    simulation = make_simulation(max_num_seqs=1)
    add(simulation, "runs", 4, max_tokens=3, priority=9)
    simulation.step()
    for index, (name, priority) in enumerate({"b": 5, "c": 5, "a": -1, "d": 7}.items(), 1):
        add(simulation, name, 4, first_token=index, max_tokens=1, priority=priority)

    order = [name for _ in range(12) for name in batch_of(simulation)]

    assert order == ["runs", "runs", "a", "b", "c", "d"]


def test_of_one_priority_who_must_end_sooner_goes_first_and_keeps_its_blocks() -> None:
    simulation = make_simulation(max_num_seqs=1)
    add(simulation, "runs", 4, max_tokens=2)
    simulation.step()
    deadlines = {"late": 30.0, "soon": 10.0, "any": math.inf, "sooner": 5.0, "lower": 99.0}
    for index, (name, deadline) in enumerate(deadlines.items(), 1):
        priority = -1 if name == "lower" else 0
        add(
            simulation, name, 4,
            first_token=index, max_tokens=1, priority=priority, deadline=deadline,
        )  # fmt: skip
    order = [name for _ in range(8) for name in batch_of(simulation)]
    assert order == ["runs", "lower", "sooner", "soon", "late", "any"]

    simulation = make_simulation(num_blocks=6)
    soon = add(simulation, "any", 8, max_tokens=12, first_token=20)
    other = add(simulation, "soon", 8, max_tokens=12, first_token=21, deadline=5.0)
    while not simulation.num_preempted:
        simulation.step()
    assert (soon.state, other.state) == (SequenceState.WAITING, SequenceState.RUNNING)


def test_a_lower_priority_number_is_admitted_before_a_prefill_goes_on() -> None:
    simulation = make_simulation(max_num_batched_tokens=6)
    add(simulation, "later", 20, max_tokens=1, priority=1)
    assert batch_of(simulation) == {"later": 6}
    add(simulation, "equal", 4, max_tokens=1, first_token=1, priority=1)
    add(simulation, "sooner", 9, max_tokens=1, first_token=2)
    assert batch_of(simulation) == {"sooner": 6}
    assert batch_of(simulation) == {"sooner": 3, "later": 3}
    assert batch_of(simulation) == {"later": 6}
    assert batch_of(simulation) == {"later": 5, "equal": 1}


@pytest.mark.parametrize(
    ("config", "num_tokens", "first_token", "lacked"),
    [
        ({}, 4, 1, ()),
        ({"max_num_seqs": 1}, 4, 1, (SEATS,)),
        ({"num_blocks": 4}, 9, 1, (BLOCKS,)),
        ({"max_num_batched_tokens": 5}, 4, 1, (STEP_TOKENS,)),
        ({}, 8, 0, (PREFIX,)),
        ({"max_num_seqs": 1, "num_blocks": 4}, 9, 1, (SEATS,)),
    ],
)
def test_what_it_lacked_is_known_of_each(
    config: dict[str, int], num_tokens: int, first_token: int, lacked: tuple[str, ...]
) -> None:
    simulation = make_simulation(**config)
    first = add(simulation, "first", 8, max_tokens=2)
    second = add(simulation, "second", num_tokens, first_token=first_token, max_tokens=2)
    while not second.was_reserved:
        simulation.step()
    assert (first.waited_for, second.waited_for) == ((), lacked)


def test_what_it_lacked_is_in_the_order_in_which_it_did() -> None:
    simulation = make_simulation(max_num_seqs=2, num_blocks=5)
    add(simulation, "short", 4, max_tokens=2)
    add(simulation, "long", 8, first_token=1, max_tokens=6)
    third = add(simulation, "third", 12, first_token=2, max_tokens=2)
    behind = add(simulation, "behind", 4, first_token=3, max_tokens=1)
    while not behind.was_reserved:
        simulation.step()
    assert third.waited_for == (SEATS, BLOCKS)
    assert behind.waited_for == ()  # but its turn
