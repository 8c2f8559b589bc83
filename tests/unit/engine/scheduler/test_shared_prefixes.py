"""Blocks that several sequences share, and those that become reusable."""

from support.engine_driver import make_request
from support.scheduled_steps import add, batch_of
from support.scheduler_simulation import make_simulation

from pagoda_engine import KvSource


def test_prefix_of_a_running_sequence_is_shared() -> None:
    simulation = make_simulation()
    first = add(simulation, "a", 10)
    simulation.step()
    second = add(simulation, "b", 11)
    simulation.step()
    assert second.num_cached_tokens == 8
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    simulation = make_simulation(max_num_batched_tokens=6)
    for name in "abc":
        add(simulation, name, 14)
    plans = [batch_of(simulation) for _ in range(3)]
    assert plans == [{"a": 6}, {"a": 6}, {"a": 2, "b": 2, "c": 2}], "three blocks are shared"


def test_who_waits_for_a_prefix_is_passed() -> None:
    simulation = make_simulation(max_num_batched_tokens=12)
    add(simulation, "a", 10)
    add(simulation, "b", 10)
    add(simulation, "c", 10, first_token=7)
    assert batch_of(simulation) == {"a": 10, "c": 2}


def test_who_waits_for_a_prefix_goes_on_when_its_producer_ends() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    producer = add(simulation, "a", 14)
    add(simulation, "b", 14)
    assert batch_of(simulation) == {"a": 4}
    simulation.scheduler.finish(producer)
    assert batch_of(simulation) == {"b": 4}


def test_an_import_is_waited_for_by_who_needs_nothing_else() -> None:
    simulation = make_simulation()
    first = add(simulation, "a", 10, kv_source=KvSource.IMPORT)
    add(simulation, "same", 10)
    add(simulation, "longer", 20)
    assert batch_of(simulation) == {}, "who imports does not wait for a step"
    assert batch_of(simulation) == {"longer": 20}
    simulation.finish_import(first, 10)
    batch = batch_of(simulation)
    assert batch.pop("same") == 2, "its two full blocks came with the import"


def test_last_prompt_token_is_never_reused() -> None:
    simulation = make_simulation()
    add(simulation, "a", 8)
    simulation.step()
    second = add(simulation, "b", 8)
    simulation.step()
    assert second.num_cached_tokens == 4


def test_output_blocks_are_reused_too() -> None:
    simulation = make_simulation()
    first = add(simulation, "a", 6, max_tokens=7)
    while simulation.scheduler.has_work():
        simulation.step()
    again = simulation.add(make_request("b", first.token_ids[:13], block_size=4))
    simulation.step()
    assert again.num_cached_tokens == 12


def test_without_prefix_caching_nothing_is_shared() -> None:
    simulation = make_simulation(enable_prefix_caching=False)
    add(simulation, "a", 10)
    simulation.step()
    second = add(simulation, "b", 10)
    simulation.step()
    assert second.num_cached_tokens == 0
    assert not simulation.pool.has_events


def test_computed_blocks_name_whole_blocks_and_the_rest_at_the_end() -> None:
    simulation = make_simulation(max_num_batched_tokens=5)
    sequence = add(simulation, "a", 14, prefill_only=True)
    while simulation.scheduler.has_work():
        simulation.step()
    spans = [(c.first_block, len(c.block_ids)) for c in simulation.computed]
    assert spans == [(0, 1), (1, 1), (2, 2)]
    assert [b for c in simulation.computed for b in c.block_ids] == sequence.block_ids


def test_computed_blocks_include_prefix_hits_in_the_first_event() -> None:
    simulation = make_simulation(max_num_batched_tokens=64)
    add(simulation, "a", 14)
    simulation.step()
    add(simulation, "b", 14, prefill_only=True)
    simulation.step()
    assert [(c.first_block, len(c.block_ids)) for c in simulation.computed] == [(0, 4)]


def test_a_prefix_made_by_a_higher_priority_number_is_not_waited_for() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    add(simulation, "batch", 20, max_tokens=1, priority=1)
    simulation.step()
    add(simulation, "urgent", 20, max_tokens=1)
    add(simulation, "equal", 20, max_tokens=1)
    # Only the block that was there already is shared with the batch's; "equal" waits for urgent's.
    assert [batch_of(simulation) for _ in range(4)] == [{"urgent": 4}] * 4
    assert batch_of(simulation) == {"equal": 4}
