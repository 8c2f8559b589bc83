"""Sequences whose blocks another worker brings."""

from support.scheduled_steps import add, batch_of
from support.scheduler_simulation import make_simulation

from pagoda_engine import KvSource
from pagoda_engine.scheduler import SequenceState


def test_import_waits_without_work_until_it_is_finished() -> None:
    simulation = make_simulation()
    sequence = add(simulation, "a", 10, kv_source=KvSource.IMPORT)
    scheduled = simulation.step()
    assert scheduled.reserved == (sequence,)
    assert scheduled.batch == ()
    assert sequence.state is SequenceState.IMPORTING
    assert not simulation.scheduler.has_work()
    simulation.finish_import(sequence, 9)
    assert batch_of(simulation) == {"a": 1}


def test_import_is_admitted_when_the_budget_is_spent() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    add(simulation, "a", 8)
    sequence = add(simulation, "b", 8, first_token=1, kv_source=KvSource.IMPORT)
    simulation.step()
    assert sequence.state is SequenceState.IMPORTING


def test_import_registers_its_whole_blocks() -> None:
    simulation = make_simulation()
    sequence = add(simulation, "a", 12, kv_source=KvSource.IMPORT)
    simulation.step()
    simulation.finish_import(sequence, 11)
    assert simulation.pool.match(sequence.block_hashes) == 2
