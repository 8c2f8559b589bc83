"""What a tenant feels of others, whatever they send; and that alone it feels nothing."""

from collections import Counter

import pytest
from support.engine_driver import make_request
from support.imaginary_model import expected_output
from support.scheduler_simulation import Simulation, make_simulation

from pagoda_engine import KvSource, SamplingParams, StepCost
from pagoda_engine.scheduler import Sequence, SequenceState
from pagoda_engine.scheduler.preemption import SHARE


def add(
    simulation: Simulation,
    tenant: bytes,
    *,
    num_prompt_tokens: int = 4,
    max_tokens: int = 30,
    ignore_eos: bool = True,
    **fields: object,
) -> Sequence:
    """Queue a sequence of a tenant; its prompt is like no other one's."""
    number = simulation.num_arrivals
    prompt = [number % 49, number // 49 % 49, *[7] * num_prompt_tokens][:num_prompt_tokens]
    request = make_request(
        f"{tenant.decode()}-{number}",
        prompt,
        block_size=4,
        cache_root=tenant.ljust(16),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos),
        tenant=tenant,
        **fields,
    )
    return simulation.add(request)


def in_batch(simulation: Simulation) -> Counter[bytes]:
    return Counter(entry.sequence.flow.tenant for entry in simulation.step().batch)


def steps_until_done(simulation: Simulation, sequence: Sequence, most: int) -> int:
    for step in range(1, most + 1):
        simulation.step()
        if sequence.state is SequenceState.FINISHED:
            return step
    raise AssertionError(f"{sequence.sequence_id} is {sequence.state} after {most} steps")


# What a tenant sends to keep another one out, and the engine that it does it to.
FLOODS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "seats": ({}, {"max_num_seqs": 8, "num_blocks": 400}),
    "blocks": ({"num_prompt_tokens": 20}, {"max_num_seqs": 8, "num_blocks": 40}),
    "prompts": ({"num_prompt_tokens": 30, "max_tokens": 1}, {"max_num_batched_tokens": 8}),
    "priority": ({"priority": -1000}, {"max_num_seqs": 4, "num_blocks": 400}),
    "prefill_only": (
        {"num_prompt_tokens": 30, "prefill_only": True},
        {"max_num_batched_tokens": 8, "max_num_seqs": 4},
    ),
}


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("flood", FLOODS)
def test_nothing_that_one_sends_keeps_another_out(flood: str, lag: int) -> None:
    sent, config = FLOODS[flood]
    simulation = make_simulation(lag=lag, **config)
    scheduler = simulation.scheduler
    late: list[Sequence] = []
    for step in range(300):
        while len(scheduler.waiting) < 40:
            add(simulation, b"many", **sent)
        for held in tuple(scheduler.held.values()):
            scheduler.finish(held)  # its push has ended
        if step % 50 == 20:
            late.append(
                add(simulation, b"few", max_tokens=4, num_prompt_tokens=8, ignore_eos=False)
            )
        simulation.step()
        if step % 50 == 40:  # 4 tokens take 4 steps alone
            assert late[-1].state is SequenceState.FINISHED, (flood, step, late[-1].state)
    for sequence in late:
        found = simulation.tokens(sequence.sequence_id)
        assert found == expected_output(sequence.request, 64)


def test_rows_are_few_beside_one_that_has_one() -> None:
    simulation = make_simulation(num_blocks=400, max_num_seqs=64)
    simulation.scheduler.step_cost = StepCost(base=10, per_decode=1, per_prefill_token=0.1)
    for _ in range(64):
        add(simulation, b"many", max_tokens=50)
    for _ in range(10):
        simulation.step()
    num_left = len(simulation.scheduler.running)
    assert num_left > 32
    assert in_batch(simulation) == {b"many": num_left}
    add(simulation, b"few", max_tokens=40)
    simulation.step()
    steps = [in_batch(simulation) for _ in range(25)]
    # It came while a step of all of them ran, 5 to 7 times as long as its own: first it catches up.
    assert all(step == {b"many": 1, b"few": 1} for step in steps[:9]), steps
    assert all(step == {b"many": 6, b"few": 1} for step in steps[14:]), steps


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize(("num_tokens", "most"), [(4, 2.0), (32, 1.75)])
def test_a_small_request_takes_at_most_twice_as_long_as_alone(
    num_tokens: int, most: float, lag: int
) -> None:
    cost = StepCost(base=1.0, per_decode=0.066, per_prefill_token=0.022)  # the demo model's, in ms

    def took(num_others: int) -> float:
        simulation = make_simulation(num_blocks=2000, max_num_seqs=64, lag=lag)
        simulation.scheduler.step_cost = cost
        times: list[float] = []

        def step() -> set[bytes]:
            batch = simulation.step().batch
            tokens = sum(entry.num_new_tokens for entry in batch if entry.is_prefill)
            num_decodes = sum(not entry.is_prefill for entry in batch)
            times.append(cost.of(num_decodes=num_decodes, num_prefill_tokens=tokens))
            return {entry.sequence.flow.tenant for entry in batch}

        for _ in range(num_others):
            add(simulation, b"many", num_prompt_tokens=15, max_tokens=48)
        for _ in range(5 if num_others else 0):
            step()
        waits = times[-1] / 2 if times else 0.0  # it comes in the middle of one
        times.clear()
        few = add(simulation, b"few", num_prompt_tokens=15, max_tokens=num_tokens)
        last = 0
        while few.state is not SequenceState.FINISHED:
            if b"few" in step():
                last = len(times)
        return waits + sum(times[:last])

    assert took(128) <= most * took(0)


def test_nobody_makes_up_for_the_background() -> None:
    simulation = make_simulation(num_blocks=400, max_num_seqs=64)
    simulation.scheduler.step_cost = StepCost(base=10, per_decode=1, per_prefill_token=0.1)
    for _ in range(40):
        add(simulation, b"many", max_tokens=50)
    for _ in range(5):
        simulation.step()
    add(simulation, b"line", priority=2001, max_tokens=40)
    simulation.step()
    steps = [in_batch(simulation) for _ in range(5)]
    assert all(step == {b"many": 6, b"line": 1} for step in steps), steps


def test_nobody_starves_beside_small_requests_without_end() -> None:
    simulation = make_simulation(num_blocks=400, max_num_seqs=16)
    simulation.scheduler.step_cost = StepCost(base=1.0, per_decode=0.1, per_prefill_token=0.02)
    many = [add(simulation, b"many", max_tokens=20) for _ in range(12)]
    for _ in range(3):
        simulation.step()
    few = add(simulation, b"few", max_tokens=4)
    for _ in range(12 * 20):  # a token in each step at least
        simulation.step()
        if few.state is SequenceState.FINISHED:
            few = add(simulation, b"few", max_tokens=4)
        if all(sequence.state is SequenceState.FINISHED for sequence in many):
            break
    for sequence in many:
        found = simulation.tokens(sequence.sequence_id)
        assert len(found) == 20


def test_those_of_one_tenant_take_turns() -> None:
    simulation = make_simulation(num_blocks=400, max_num_seqs=40)
    simulation.scheduler.step_cost = StepCost(base=3, per_decode=1, per_prefill_token=0.1)
    many = [add(simulation, b"many", max_tokens=50) for _ in range(30)]
    for _ in range(5):
        simulation.step()
    few = [add(simulation, b"few", max_tokens=50) for _ in range(3)]
    last_turn = dict.fromkeys(many, 0)
    for step in range(1, 31):
        batch = [entry.sequence for entry in simulation.step().batch]
        assert 1 <= sum(s in last_turn for s in batch) < 10
        last_turn.update((s, step) for s in batch if s in last_turn)
        running = [s for s in many if s.state is SequenceState.RUNNING]
        # 30 of them; one in each of some 16 steps, then 3 or more.
        assert all(step - last_turn[s] <= 22 for s in running)
    assert any(s.state is SequenceState.RUNNING for s in few)


def test_a_tenant_alone_has_every_seat_and_block() -> None:
    simulation = make_simulation(num_blocks=64, max_num_seqs=16)
    for _ in range(30):
        add(simulation, b"one")
    for _ in range(4):
        simulation.step()
    assert in_batch(simulation) == {b"one": 16}


def test_seats_even_out_and_nobody_takes_them_back() -> None:
    simulation = make_simulation(num_blocks=400, max_num_seqs=8)
    for tenant in (b"many", b"also"):
        for _ in range(20):
            add(simulation, tenant, max_tokens=55)
        for _ in range(6):
            simulation.step()
    seats = Counter(s.flow.tenant for s in simulation.scheduler.running)
    assert abs(seats[b"many"] - seats[b"also"]) <= 1, seats  # one may have ended just now
    taken = simulation.num_preempted
    assert 0 < taken <= 4
    for _ in range(20):
        simulation.step()
    assert simulation.num_preempted == taken


def test_seats_go_by_weight() -> None:
    simulation = make_simulation(num_blocks=400, max_num_seqs=8)
    for _ in range(20):
        add(simulation, b"light", max_tokens=55)
    simulation.step()
    for _ in range(20):
        add(simulation, b"heavy", max_tokens=55, weight=3.0)
    for _ in range(12):
        simulation.step()
    seats = Counter(s.flow.tenant for s in simulation.scheduler.running)
    assert seats == {b"light": 2, b"heavy": 6}


def test_blocks_are_taken_from_who_has_the_most_only_if_that_suffices() -> None:
    simulation = make_simulation(num_blocks=30, max_model_len=120)
    for _ in range(3):
        add(simulation, b"many", num_prompt_tokens=35, max_tokens=4)
    simulation.step()
    large = add(simulation, b"large", num_prompt_tokens=100, max_tokens=2)  # 25 of 30 blocks
    simulation.step()
    assert simulation.num_preempted == 0, "it would have more than the others then"
    steps_until_done(simulation, large, 20)


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
def test_a_large_sequence_ends_beside_a_stream_of_small_ones(lag: int) -> None:
    simulation = make_simulation(num_blocks=30, max_model_len=120, lag=lag)
    large = add(simulation, b"large", num_prompt_tokens=90, max_tokens=20)
    for _ in range(120):
        while len(simulation.scheduler.waiting) < 10:
            add(simulation, b"many", num_prompt_tokens=4, max_tokens=8)
        simulation.step()
        if large.state is SequenceState.FINISHED:
            return
    raise AssertionError(f"{large.state} with {large.num_output_tokens} tokens")


def test_who_lacks_blocks_is_not_passed_by_who_has_more() -> None:
    simulation = make_simulation(num_blocks=30, max_model_len=120)
    for _ in range(3):
        add(simulation, b"many", num_prompt_tokens=30, max_tokens=8)
    simulation.step()
    large = add(simulation, b"large", num_prompt_tokens=100, max_tokens=2)
    for _ in range(20):  # each of them would fit at once
        add(simulation, b"many", num_prompt_tokens=4, max_tokens=8)
    steps_until_done(simulation, large, 20)


def test_blocks_that_have_lost_parts_weigh_less() -> None:
    """Who has more blocks, but less of the pool, keeps them."""
    simulation = make_simulation(
        num_blocks=48,
        max_model_len=160,
        max_num_seqs=16,
        max_num_batched_tokens=16,
        part_window=4,
    )
    of_tenant = {
        b"long": [add(simulation, b"long", num_prompt_tokens=100) for _ in range(2)],
        b"many": [add(simulation, b"many", num_prompt_tokens=8) for _ in range(8)],
    }
    while not simulation.num_preempted:
        blocks = {t: sum(len(s.block_ids) for s in some) for t, some in of_tenant.items()}
        simulation.step()
    assert blocks[b"long"] > blocks[b"many"]
    assert {s.flow.tenant for s in simulation.scheduler.waiting} == {b"many"}


def test_an_interactive_sequence_takes_a_seat_of_the_background() -> None:
    simulation = make_simulation(max_num_seqs=2, num_blocks=64)
    lines = [
        add(simulation, b"one", priority=2001, max_tokens=40, ignore_eos=False) for _ in range(2)
    ]
    simulation.step()
    chat = add(simulation, b"one", max_tokens=4)
    (preempted,) = simulation.step().preempted
    assert (preempted.sequence_id, preempted.cause) == (lines[1].sequence_id, SHARE)
    assert chat.state is SequenceState.RUNNING
    assert [line.state for line in lines] == [SequenceState.RUNNING, SequenceState.WAITING]
    steps_until_done(simulation, chat, 6)
    while simulation.has_work():
        simulation.step()
    for sequence in lines:
        found = simulation.tokens(sequence.sequence_id)
        assert found == expected_output(sequence.request, 64)


def test_who_gave_its_seat_takes_no_share_of_the_step() -> None:
    """It cannot be admitted in it, so its prompt is no reason to leave a decode out."""
    simulation = make_simulation(max_num_seqs=2, num_blocks=24, max_num_batched_tokens=40)
    simulation.scheduler.step_cost = StepCost(base=1.0, per_decode=0.5, per_prefill_token=0.5)
    add(simulation, b"a", num_prompt_tokens=5, priority=1001)
    decode = add(simulation, b"a")
    for _ in range(6):
        simulation.step()
    first = add(simulation, b"a", num_prompt_tokens=6)
    scheduled = simulation.step()
    assert [preemption.cause for preemption in scheduled.preempted] == [SHARE]
    assert {entry.sequence for entry in scheduled.batch} == {decode, first}


def test_an_import_gets_its_seat_beside_a_full_batch() -> None:
    simulation = make_simulation(max_num_seqs=4, num_blocks=64)
    for _ in range(9):
        add(simulation, b"many")
    simulation.step()
    imported = add(simulation, b"few", kv_source=KvSource.IMPORT)
    assert simulation.step().reserved == (imported,)
