"""The scheduler under random callers: every invariant after every step, every token at the end."""

import itertools
import random

import pytest
from support.engine_driver import make_request
from support.imaginary_model import expected_hypotheses
from support.random_caller import RandomCaller
from support.scheduler_simulation import make_simulation
from support.seeds import runs
from support.simulated_drafter import SimulatedDrafter

from pagoda_engine import BeamSearchParams, SamplingParams


@pytest.mark.slow
@pytest.mark.parametrize("enable_prefix_caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("num_tenants", [1, 5])
@pytest.mark.parametrize("seed", runs(1))
def test_random_runs_keep_every_invariant(
    seed: int, num_tenants: int, lag: int, enable_prefix_caching: bool
) -> None:
    caller = RandomCaller(
        seed, lag=lag, enable_prefix_caching=enable_prefix_caching, num_tenants=num_tenants
    )
    caller.run(num_sequences=300, max_steps=6000)
    caller.check()


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize("number", runs(1))
def test_random_runs_that_fetch_what_was_preempted_keep_every_invariant(
    seed: int, number: int, searches: bool, lag: int
) -> None:
    caller = RandomCaller(
        seed + number,
        lag=lag,
        enable_prefix_caching=True,
        num_tenants=2,
        searches=searches,
        fetches=True,
    )
    caller.run(num_sequences=300, max_steps=9000)
    caller.check()


@pytest.mark.slow
def test_the_runs_that_fetch_do() -> None:
    callers = [
        RandomCaller(number, lag=1, enable_prefix_caching=True, num_tenants=2, fetches=True)
        for number in range(4)
    ]
    for caller in callers:
        caller.run(num_sequences=200, max_steps=9000)
    assert sum(caller.simulation.num_fetched for caller in callers) > 20


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("num_tenants", [1, 3])
@pytest.mark.parametrize("number", runs(2))
def test_random_runs_that_speculate_keep_every_invariant(
    seed: int, number: int, num_tenants: int, lag: int
) -> None:
    caller = RandomCaller(
        seed + number,
        lag=lag,
        enable_prefix_caching=number != 0,
        num_tenants=num_tenants,
        speculates=True,
    )
    caller.run(num_sequences=200, max_steps=6000)
    caller.check()


@pytest.mark.slow
@pytest.mark.parametrize("enable_prefix_caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("num_tenants", [1, 3])
@pytest.mark.parametrize("number", runs(1))
def test_random_runs_with_beam_searches_keep_every_invariant(
    seed: int, number: int, num_tenants: int, lag: int, enable_prefix_caching: bool
) -> None:
    caller = RandomCaller(
        seed + number,
        lag=lag,
        enable_prefix_caching=enable_prefix_caching,
        num_tenants=num_tenants,
        searches=True,
    )
    caller.run(num_sequences=150, max_steps=6000)
    caller.check()
    assert caller.simulation.num_beam_rows > 100


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("num_tenants", [1, 3])
@pytest.mark.parametrize("number", runs(1))
def test_beam_searches_beside_those_that_speculate_keep_every_invariant(
    seed: int, number: int, num_tenants: int, lag: int
) -> None:
    caller = RandomCaller(
        seed + number,
        lag=lag,
        enable_prefix_caching=True,
        num_tenants=num_tenants,
        speculates=True,
        searches=True,
    )
    caller.run(num_sequences=150, max_steps=6000)
    caller.check()
    assert caller.simulation.num_beam_rows > 100


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("window", [1, 4, 9, 18])
@pytest.mark.parametrize("of", ["window", "part_window"])
@pytest.mark.parametrize("number", runs(2))
def test_random_runs_with_windows_keep_every_invariant(
    seed: int, number: int, of: str, window: int, lag: int
) -> None:
    """Of all layers, and of some; each kind of caller with a prefix cache and without."""
    caller = RandomCaller(
        seed + number,
        lag=lag,
        enable_prefix_caching=(number + number // 4 + lag) % 2 == 0,
        num_tenants=(1, 3)[number % 2],
        speculates=number % 4 == 2,
        searches=number % 4 == 3,
        **{of: window},
    )
    caller.run(num_sequences=150, max_steps=6000)
    caller.check()
    if of == "part_window":
        assert caller.simulation.num_dropped_parts > 20
        return
    assert caller.simulation.num_null_blocks > 20
    assert caller.simulation.num_given_up > 0 or window > 4


@pytest.mark.slow
def test_random_runs_do_speculate_and_are_wrong() -> None:
    caller = RandomCaller(1, lag=1, enable_prefix_caching=True, speculates=True)
    caller.run(num_sequences=200, max_steps=6000)
    assert 5 < caller.simulation.num_accepted < caller.simulation.num_proposed


@pytest.mark.slow
def test_random_runs_do_preempt() -> None:
    rng = random.Random(1)
    simulation = make_simulation(num_blocks=12, max_num_seqs=9, max_model_len=44)
    for i in range(60):
        prompt = [rng.randrange(49) for _ in range(rng.randint(1, 8))]
        params = SamplingParams(max_tokens=20)
        simulation.add(make_request(str(i), prompt, block_size=4, sampling=params))
    while simulation.scheduler.has_work():
        simulation.step()
    assert not len(simulation.scheduler)
    assert simulation.num_preempted > 10


@pytest.mark.slow
def test_preempted_beam_searches_begin_again_and_end_alike() -> None:
    rng = random.Random(1)
    simulation = make_simulation(num_blocks=14, max_num_seqs=9, max_model_len=44)
    params = SamplingParams(max_tokens=8, temperature=0.0, beam_search=BeamSearchParams(3))
    requests = []
    for i in range(20):
        prompt = [rng.randrange(49) for _ in range(rng.randint(1, 8))]
        requests.append(make_request(str(i), prompt, block_size=4, sampling=params))
        simulation.add(requests[-1])
    while simulation.scheduler.has_work():
        simulation.step()
    assert simulation.num_preempted > 5
    for request in requests:
        (output,) = simulation.outputs[request.sequence_id]
        found = [hypothesis.token_ids for hypothesis in output.hypotheses]
        assert found == expected_hypotheses(request, 44)


@pytest.mark.slow
@pytest.mark.parametrize("part_window", [None, 1, 4, 9, 18])
@pytest.mark.parametrize("number", runs(2))
def test_a_search_that_the_door_lets_in_fits_alone(
    seed: int, number: int, part_window: int | None
) -> None:
    """In the smallest such pool, which windows make smaller."""
    rng = random.Random(seed + number)
    for i in range(25):
        params = SamplingParams(
            max_tokens=rng.randint(1, 40),
            temperature=0.0,
            beam_search=BeamSearchParams(rng.randint(1, 4), 1.0, early_stopping="never"),
        )
        prompt = [rng.randrange(49) for _ in range(rng.randint(1, 90))]
        request = make_request(str(i), prompt, block_size=4, sampling=params)
        simulations = (
            make_simulation(
                num_blocks=num_blocks,
                max_num_batched_tokens=rng.choice([8, 40]),
                max_model_len=140,
                part_window=part_window,
            )
            for num_blocks in itertools.count(1)
        )
        simulation = next(s for s in simulations if s.accepts(request))
        simulation.add(request)
        num_steps = 0
        while simulation.has_work():
            simulation.step()
            num_steps += 1
            assert num_steps < 300, "it waits for ever"
        assert simulation.num_preempted == 0
        (output,) = simulation.outputs[request.sequence_id]
        found = [hypothesis.token_ids for hypothesis in output.hypotheses]
        assert found == expected_hypotheses(request, 140)
        assert simulation.pool.num_free_blocks == simulation.config.num_blocks


@pytest.mark.slow
def test_thousands_of_requests_with_everything_at_once(seed: int) -> None:
    """In one run all that the others do apart, and each of it often."""
    caller = RandomCaller(seed, lag=1, enable_prefix_caching=True, num_tenants=3, everything=True)
    number = 4000 * len(runs(1))
    caller.run(num_sequences=number, max_steps=20 * number)
    caller.check()
    simulation = caller.simulation
    assert isinstance(simulation.drafter, SimulatedDrafter)
    counted = {
        "aborts": len(caller.aborted),
        "preemptions": simulation.num_preempted,
        "choices of one prompt": caller.num_forked,
        "rows of beams": simulation.num_beam_rows,
        "right proposals": simulation.num_accepted,
        "wrong proposals": simulation.num_proposed - simulation.num_accepted,
        "drafted batches": len(simulation.drafter.batches),
        "evictions": simulation.num_evicted,
        "imports": caller.num_imported,
        "exports": caller.num_released,
        "fetched blocks": simulation.num_fetched,
    }
    assert min(counted.values()) > number // 100, counted
