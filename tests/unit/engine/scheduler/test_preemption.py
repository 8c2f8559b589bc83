"""Who gives blocks up, and how it goes on."""

from support.imaginary_model import expected_output
from support.scheduled_steps import add, step_until_preempted
from support.scheduler_simulation import make_simulation

from pagoda_engine import KvSource
from pagoda_engine.scheduler import SequenceState


def test_youngest_is_preempted_and_goes_on_where_it_was() -> None:
    simulation = make_simulation(num_blocks=6)
    old = add(simulation, "old", 8, max_tokens=9, first_token=10)
    young = add(simulation, "young", 8, max_tokens=9, first_token=11)
    step_until_preempted(simulation)
    assert young.state is SequenceState.WAITING
    assert old.state is SequenceState.RUNNING
    while simulation.scheduler.has_work():
        simulation.step()
    for sequence in (old, young):
        tokens = simulation.tokens(sequence.sequence_id)
        assert tokens == expected_output(sequence.request, 64)


def test_preempted_goes_to_the_front_of_the_queue() -> None:
    simulation = make_simulation(num_blocks=6)
    add(simulation, "old", 8, max_tokens=9, first_token=10)
    young = add(simulation, "young", 8, max_tokens=9, first_token=11)
    simulation.step()
    add(simulation, "new", 4, first_token=42)
    step_until_preempted(simulation)
    assert simulation.scheduler.waiting[0] is young


def test_late_import_that_is_preempted_queues_behind_older_ones() -> None:
    simulation = make_simulation(num_blocks=7)
    oldest = add(simulation, "oldest", 8, max_tokens=20, first_token=10)
    middle = add(simulation, "middle", 4, max_tokens=20, first_token=11)
    importing = add(simulation, "importing", 4, first_token=13, kv_source=KvSource.IMPORT)
    step_until_preempted(simulation)
    assert middle.state is SequenceState.WAITING
    simulation.finish_import(importing, 3)
    for _ in range(20):
        simulation.step()
        if importing.state is SequenceState.WAITING:
            break
    assert oldest.state is SequenceState.RUNNING
    assert list(simulation.scheduler.waiting) == [middle, importing]


def test_prefill_only_is_never_preempted() -> None:
    simulation = make_simulation(num_blocks=7, max_num_batched_tokens=2)
    decoding = add(simulation, "decoding", 4, max_tokens=20, first_token=10)
    for _ in range(3):
        simulation.step()
    exporting = add(simulation, "exporting", 15, first_token=11, prefill_only=True)
    step_until_preempted(simulation)
    assert exporting.state is SequenceState.RUNNING
    assert decoding.state is SequenceState.WAITING
    for _ in range(12):
        simulation.step()
    assert exporting.state is SequenceState.HELD
    assert decoding.state is SequenceState.WAITING
    assert not simulation.scheduler.has_work()
    simulation.scheduler.finish(exporting)
    assert simulation.scheduler.has_work()


def test_the_highest_priority_number_is_preempted_and_then_the_youngest() -> None:
    simulation = make_simulation(num_blocks=9)
    old = add(simulation, "old", 8, max_tokens=13, first_token=10, priority=1)
    middle = add(simulation, "middle", 8, max_tokens=13, first_token=11)
    young = add(simulation, "young", 8, max_tokens=13, first_token=12)
    step_until_preempted(simulation)
    assert [s.state for s in (old, middle, young)] == [
        SequenceState.WAITING, SequenceState.RUNNING, SequenceState.RUNNING,
    ]  # fmt: skip
    simulation.num_preempted = 0
    step_until_preempted(simulation)
    assert middle.state is SequenceState.RUNNING
    assert list(simulation.scheduler.waiting) == [young, old]
    while simulation.scheduler.has_work():
        simulation.step()
    for sequence in (old, middle, young):
        tokens = simulation.tokens(sequence.sequence_id)
        assert tokens == expected_output(sequence.request, 64)


def test_prompts_that_get_no_further_blocks_give_theirs() -> None:
    """They would wait for each other's: with a window they take blocks as they go on."""
    simulation = make_simulation(num_blocks=12, max_num_batched_tokens=8, window=4)
    sequence = add(simulation, "a", 44)
    simulation.step()
    assert len(sequence.block_ids) == 6  # of the window, and of two steps
    stolen = simulation.pool.allocate((), simulation.pool.num_free_blocks)
    assert stolen is not None
    while sequence.state is SequenceState.RUNNING:
        scheduled = simulation.scheduler.schedule()
        if scheduled.num_preempted:
            break
        rows = simulation.launch(scheduled)
        simulation.read(scheduled, rows)
        more = simulation.pool.allocate((), simulation.pool.num_free_blocks)
        stolen += more or []
    assert sequence.state is SequenceState.WAITING
    assert not sequence.block_ids
    assert not simulation.scheduler.schedule().batch, "there are too few for it"
    simulation.pool.free(stolen)
    while simulation.has_work():
        simulation.step()
    assert simulation.tokens("a") == expected_output(sequence.request, 64)
