"""The scheduler under random callers: every invariant after every step, every token at the end."""

import itertools
import random
from collections import Counter

import pytest
from support.engine_driver import make_request
from support.scheduler_simulation import (
    ForcesRuns,
    OftenRight,
    expected_hypotheses,
    expected_output,
    make_simulation,
)
from support.seeds import runs

from pagoda_engine import BeamSearchParams, KvSource, SamplingParams, StepCost
from pagoda_engine.scheduler import Sequence, SequenceState


class RandomCaller:
    """Adds, aborts, imports and releases at random, and remembers what must come out."""

    def __init__(
        self,
        seed: int,
        *,
        lag: int,
        enable_prefix_caching: bool,
        num_tenants: int = 1,
        speculates: bool = False,
        searches: bool = False,
        fetches: bool = False,
        window: int | None = None,
        part_window: int | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        proposer_rng = random.Random(seed)
        self.tenants = [bytes([i]) for i in range(num_tenants)]
        self.searches = searches
        self.idle_steps: Counter[Sequence] = Counter()
        self.simulation = make_simulation(
            num_blocks=self.rng.choice([12, 16, 24]),
            max_num_seqs=self.rng.choice([5, 9, 16] if speculates or searches else [2, 5, 9]),
            max_num_batched_tokens=self.rng.choice(
                [8, 40] if speculates or searches else [3, 8, 40]
            ),
            max_model_len=44,
            enable_prefix_caching=enable_prefix_caching,
            num_speculative_tokens=self.rng.choice([3, 9]),
            make_proposer=(lambda ids, _: OftenRight(ids, proposer_rng)) if speculates else None,
            lag=lag,
            window=window,
            part_window=part_window,
        )
        if speculates:  # wherever there is room
            self.simulation.scheduler.step_cost = StepCost(per_proposed_token=0.01)
        if fetches:
            self.simulation.lower_is_lossy = True
            self.simulation.scheduler.step_cost = StepCost(
                fetch_base=0.4, per_fetched_block=self.rng.choice([0.1, 0.5])
            )
        self.arrivals = 0.2 if speculates else 0.4  # a step
        self.most_tokens = 24 if speculates else 14
        self.sequences: dict[str, Sequence] = {}
        self.aborted: set[str] = set()
        self.prompts: list[list[int]] = []

    def run(self, num_sequences: int, max_steps: int) -> None:
        scheduler = self.simulation.scheduler
        for _ in range(max_steps):
            if len(self.sequences) < num_sequences and self.rng.random() < self.arrivals:
                self.add()
            if self.rng.random() < 0.03:
                self.abort()
            for sequence in list(scheduler.importing.values()):
                if self.rng.random() < 0.3:
                    lowest, highest = sequence.num_cached_tokens, len(sequence.token_ids)
                    if sequence.num_null_blocks:  # nothing, or what is not given up
                        lowest = max(lowest, self.rng.choice([0, highest]))
                    self.simulation.finish_import(sequence, self.rng.randint(lowest, highest))
            for sequence in list(scheduler.held.values()):
                if self.rng.random() < 0.3:
                    scheduler.finish(sequence)
            ready = [s for s in scheduler.running if s.is_prefilling or s.is_decoding]
            scheduled = self.simulation.step()
            self.check_turns(ready, {entry.sequence.leader for entry in scheduled.batch})
            is_idle = not len(scheduler) and not self.simulation.in_flight
            if len(self.sequences) == num_sequences and is_idle:
                return
        raise AssertionError(f"{len(scheduler)} sequences left after {max_steps} steps")

    def check_turns(self, ready: list[Sequence], batch: set[Sequence]) -> None:
        """Whoever could be in a step is in one soon, whatever other tenants have there."""
        most = 2 * (len(self.tenants) + 1) * (len(ready) + 1)
        for sequence in ready:
            of_lower_number = any(
                other.flow == sequence.flow and other.priority < sequence.priority
                for other in batch
            )
            if sequence in batch or of_lower_number or sequence.state is not SequenceState.RUNNING:
                self.idle_steps[sequence] = 0
            elif not sequence.flow.is_background:
                self.idle_steps[sequence] += 1
                assert self.idle_steps[sequence] <= most

    def add(self) -> None:
        """Mostly a prompt that starts like an earlier one."""
        rng, prompt = self.rng, []
        if self.prompts and rng.random() < 0.7:
            prompt = rng.choice(self.prompts)[: rng.randint(1, 20)]
        prompt = prompt + [rng.randrange(49) for _ in range(rng.randint(0 if prompt else 1, 10))]
        self.prompts.append(prompt)
        kind = rng.random()
        if self.searches and rng.random() < 0.4:
            self.add_search(prompt)
            return
        tenant = rng.choice(self.tenants)
        priority = rng.choice([0, 0, 0, -2, 1])
        if len(self.tenants) > 1:
            priority = rng.choice([priority, priority, 1001])
        sequence_id = str(len(self.sequences))
        self.sequences[sequence_id] = self.simulation.add(
            make_request(
                sequence_id,
                prompt,
                block_size=4,
                sampling=SamplingParams(max_tokens=rng.randint(3, self.most_tokens)),
                output_token_ids=tuple(rng.randrange(49) for _ in range(rng.choice([0, 0, 2]))),
                kv_source=(
                    rng.choice([KvSource.IMPORT, KvSource.HANDOVER])
                    if kind < 0.25
                    else KvSource.COMPUTE
                ),
                prefill_only=0.2 < kind < 0.4,
                first_export_block=rng.choice([0, rng.randrange(len(prompt) // 4 + 1)]),
                token_mask=rng.choice([None, None, ForcesRuns(rng.choice([1, 4, 13]))]),
                priority=priority,
                tenant=tenant,
                weight=1.0 + 2.0 * (tenant == self.tenants[-1] != self.tenants[0]),
            )
        )

    def add_search(self, prompt: list[int]) -> None:
        """One that the door lets in: the pool is large enough for each alone."""
        rng = self.rng
        sequence_id = str(len(self.sequences))
        for _ in range(1000):
            params = SamplingParams(
                max_tokens=rng.randint(1, 12),
                temperature=0.0,
                beam_search=BeamSearchParams(
                    rng.randint(1, 4),
                    rng.choice([0.0, 1.0, 2.0]),
                    rng.choice([False, True, "never"]),
                ),
            )
            request = make_request(
                sequence_id,
                prompt,
                block_size=4,
                sampling=params,
                kv_source=KvSource.IMPORT if rng.random() < 0.25 else KvSource.COMPUTE,
                tenant=rng.choice(self.tenants),
            )
            if self.simulation.accepts(request):
                self.sequences[sequence_id] = self.simulation.add(request)
                return
        raise AssertionError(f"no search of {len(prompt)} tokens fits the pool")

    def check(self) -> None:
        """All blocks are free, and every output is what it is alone, or its beginning."""
        simulation = self.simulation
        assert simulation.pool.num_free_blocks == simulation.config.num_blocks
        for sequence_id, sequence in self.sequences.items():
            if sequence.beams is not None:
                self.check_hypotheses(sequence_id, sequence)
                continue
            expected = expected_output(sequence.request, 44)
            found = simulation.tokens(sequence_id)
            num_expected = len(found) if sequence_id in self.aborted else len(expected)
            assert found == expected[:num_expected]

    def check_hypotheses(self, sequence_id: str, sequence: Sequence) -> None:
        outputs = self.simulation.outputs.get(sequence_id, [])
        assert len(outputs) == 1 or sequence_id in self.aborted
        for output in outputs:
            found = [hypothesis.token_ids for hypothesis in output.hypotheses]
            assert found == expected_hypotheses(sequence.request, 44)

    def abort(self) -> None:
        alive = [s for s in self.sequences.values() if s.state is not SequenceState.FINISHED]
        if alive:
            victim = self.rng.choice(alive)
            self.aborted.add(victim.sequence_id)
            self.simulation.scheduler.finish(victim)


@pytest.mark.slow
@pytest.mark.parametrize("enable_prefix_caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("num_tenants", [1, 5])
@pytest.mark.parametrize("seed", runs(2))
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
@pytest.mark.parametrize("number", runs(2))
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
@pytest.mark.parametrize("number", runs(4))
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
@pytest.mark.parametrize("number", runs(2))
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
@pytest.mark.parametrize("number", runs(2))
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
@pytest.mark.parametrize("enable_prefix_caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("window", [1, 4, 9, 18])
@pytest.mark.parametrize("of", ["window", "part_window"])
@pytest.mark.parametrize("number", runs(4))
def test_random_runs_with_windows_keep_every_invariant(
    seed: int, number: int, of: str, window: int, lag: int, enable_prefix_caching: bool
) -> None:
    """Of all layers, and of some."""
    caller = RandomCaller(
        seed + number,
        lag=lag,
        enable_prefix_caching=enable_prefix_caching,
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
def test_three_thousand_requests_keep_every_invariant(seed: int) -> None:
    """One run of everything at once: tenants, imports, exports, forced runs, guesses, aborts."""
    caller = RandomCaller(seed, lag=1, enable_prefix_caching=True, num_tenants=3, speculates=True)
    caller.run(num_sequences=3000 * len(runs(1)), max_steps=60_000 * len(runs(1)))
    caller.check()
