import pytest
from support.engine_driver import make_request
from support.scheduler_simulation import (
    ForcesRuns,
    Simulation,
    expected_output,
    make_simulation,
)

from pagoda_engine import KvSource, SamplingParams
from pagoda_engine.scheduler import Sequence, SequenceState
from pagoda_engine.scheduler.scheduler import LEAST_CHUNK
from pagoda_engine.scheduler.step_cost import StepCost


def add(
    simulation: Simulation,
    sequence_id: str,
    num_prompt_tokens: int,
    *,
    max_tokens: int = 6,
    first_token: int = 0,
    **fields: object,
) -> Sequence:
    """Queue a sequence whose prompt shares nothing with one of another `first_token`."""
    prompt = [first_token, *range(1, num_prompt_tokens)]
    return simulation.add(
        make_request(
            sequence_id,
            prompt,
            block_size=4,
            sampling=SamplingParams(max_tokens=max_tokens),
            **fields,
        )
    )


def step_until_preempted(simulation: Simulation) -> None:
    for _ in range(30):
        simulation.step()
        if simulation.num_preempted:
            return
    raise AssertionError("nothing was preempted")


def batch_of(simulation: Simulation) -> dict[str, int]:
    return {s.sequence.sequence_id: s.num_new_tokens for s in simulation.step().batch}


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
    # A step of two decodes takes 12; 28 tokens of a prompt take 0.6 of that.
    assert batch_of(simulation) == {"short": 1, "other": 1, "long": 28}
    add(simulation, "fits", 14, first_token=3)
    assert batch_of(simulation) == {"short": 1, "other": 1, "long": 28, "fits": 14}
    simulation.scheduler.finish(simulation.scheduler.get("short"))
    simulation.scheduler.finish(simulation.scheduler.get("other"))
    simulation.scheduler.finish(simulation.scheduler.get("fits"))
    assert batch_of(simulation) == {"long": 64}  # nobody waits for it


FAR = StepCost(base=58.0, per_decode=2.0, per_prefill_token=0.1, per_attended_token=0.03)


def test_chunks_of_a_long_prompt_shrink_as_their_tokens_attend_to_more() -> None:
    simulation = make_simulation(max_num_batched_tokens=64, num_blocks=100, max_model_len=300)
    simulation.scheduler.step_cost = FAR
    add(simulation, "short", 20, max_tokens=100)
    simulation.step()
    add(simulation, "long", 200, first_token=2)
    chunks, done = list[int](), 0
    while done < 200:
        chunks.append(batch_of(simulation)["long"])
        # A step of a decode takes 60; the prompt takes 36 at most, and one token more would not.
        assert FAR.of_prompt(done, chunks[-1]) <= 36
        assert FAR.of_prompt(done, chunks[-1] + 1) > 36 or done + chunks[-1] == 200
        done += chunks[-1]
    assert chunks[:-1] == sorted(chunks[:-1], reverse=True)
    assert chunks[0] > 5 * chunks[-2]


def test_a_chunk_is_of_some_tokens_however_much_they_attend_to() -> None:
    simulation = make_simulation(max_num_batched_tokens=64, num_blocks=100, max_model_len=300)
    simulation.scheduler.step_cost = StepCost(
        base=1.0, per_decode=1.0, per_prefill_token=0.1, per_attended_token=100.0
    )
    add(simulation, "short", 20, max_tokens=100)
    simulation.step()
    add(simulation, "long", 200, first_token=2)
    for _ in range(3):
        assert batch_of(simulation)["long"] >= LEAST_CHUNK
    assert batch_of(simulation)["long"] == LEAST_CHUNK


def test_few_tokens_behind_a_long_cached_prefix_are_a_long_prompt() -> None:
    simulation = make_simulation(max_num_batched_tokens=32, num_blocks=200, max_model_len=300)
    simulation.scheduler.step_cost = FAR
    add(simulation, "before", 200, first_token=2, max_tokens=1)
    while simulation.has_work():
        simulation.step()
    add(simulation, "short", 20, max_tokens=100)
    simulation.step()
    add(simulation, "again", 225, first_token=2)
    assert batch_of(simulation) == {"short": 1, "again": 5}


def test_no_prompt_joins_a_step_that_has_enough() -> None:
    simulation = make_simulation(max_num_batched_tokens=64, enough_prompt_tokens=16, num_blocks=64)
    for number, size in enumerate((10, 10, 40, 10)):
        add(simulation, f"s{number}", size, first_token=number)
    assert batch_of(simulation) == {"s0": 10, "s1": 10}
    assert batch_of(simulation) == {"s0": 1, "s1": 1, "s2": 40}
    assert batch_of(simulation) == {"s0": 1, "s1": 1, "s2": 1, "s3": 10}


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


@pytest.mark.parametrize("state", list(SequenceState)[:4], ids=lambda state: state.value)
def test_finish_frees_the_blocks_in_every_state(state: SequenceState) -> None:
    simulation = make_simulation(max_num_seqs=1)
    if state is SequenceState.WAITING:
        add(simulation, "other", 4, first_token=9, max_tokens=20)
    fields: dict[SequenceState, dict[str, object]] = {
        SequenceState.IMPORTING: {"kv_source": KvSource.IMPORT},
        SequenceState.HELD: {"prefill_only": True},
    }
    sequence = add(simulation, "a", 9, **fields.get(state, {}))
    simulation.step()
    assert sequence.state is state
    simulation.scheduler.finish(sequence)
    simulation.scheduler.check_invariants()
    held = sum(len(s.block_ids) for s in simulation.scheduler.running)
    assert simulation.pool.num_free_blocks == 32 - held


def test_check_invariants_finds_a_leaked_block() -> None:
    simulation = make_simulation()
    sequence = add(simulation, "a", 9)
    simulation.step()
    sequence.block_ids.pop()
    with pytest.raises(AssertionError):
        simulation.scheduler.check_invariants()


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


def test_the_lower_priority_number_is_admitted_first_and_then_the_older() -> None:
    simulation = make_simulation(max_num_seqs=1)
    add(simulation, "runs", 4, max_tokens=3, priority=9)
    simulation.step()
    for index, (name, priority) in enumerate({"b": 5, "c": 5, "a": -1, "d": 7}.items(), 1):
        add(simulation, name, 4, first_token=index, max_tokens=1, priority=priority)

    order = [name for _ in range(12) for name in batch_of(simulation)]

    assert order == ["runs", "runs", "a", "b", "c", "d"]


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


def test_a_prefix_made_by_a_higher_priority_number_is_not_waited_for() -> None:
    simulation = make_simulation(max_num_batched_tokens=4)
    add(simulation, "batch", 20, max_tokens=1, priority=1)
    simulation.step()
    add(simulation, "urgent", 20, max_tokens=1)
    add(simulation, "equal", 20, max_tokens=1)
    # Only the block that was there already is shared with the batch's; "equal" waits for urgent's.
    assert [batch_of(simulation) for _ in range(4)] == [{"urgent": 4}] * 4
    assert batch_of(simulation) == {"equal": 4}


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
