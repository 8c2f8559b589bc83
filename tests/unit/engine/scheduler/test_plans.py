"""Each step of the scheduler is the one that a naive simulator of its rules plans."""

import math
import random
from collections import Counter

import pytest
from support.engine_driver import make_request
from support.naive_scheduler import NaiveScheduler, NaiveSequence
from support.scheduler_simulation import make_simulation

from pagoda_engine import SamplingParams, StepCost
from pagoda_engine.scheduler import Sequence, SequenceState
from pagoda_engine.scheduler.preemption import GROWTH, SHARE
from pagoda_engine.scheduler.sequence import MAX_INTERACTIVE_PRIORITY

MAX_MODEL_LEN = 60


class Caller:
    """Adds and aborts at random; both sides hear of the same."""

    def __init__(self, seed: int, num_tenants: int = 1) -> None:
        rng = self.rng = random.Random(seed)
        self.deadlines, self.tenants = random.Random(seed), random.Random(seed)
        weights = [1.0, 1.0, 4.0, 0.5]
        self.weights = {bytes([i]): weights[i] for i in range(num_tenants)}
        max_tokens = rng.choice([3, 8, 24, 40])
        self.simulation = make_simulation(
            num_blocks=rng.choice([16, 24, 100]),
            max_num_seqs=rng.choice([2, 5, 9]),
            max_num_batched_tokens=max_tokens,
            enough_prompt_tokens=rng.choice([0, max_tokens // 2]),
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=False,
        )
        scheduler = self.simulation.scheduler
        scheduler.step_cost = StepCost(
            base=1.0,
            per_decode=0.5,
            per_prefill_token=0.5,
            per_attended_token=rng.choice([0.0, 1 / 64, 1 / 4]),
            per_context_token=rng.choice([0.0, 1 / 16]),
        )
        self.naive = NaiveScheduler(self.simulation.config, scheduler.step_cost)
        self.sequences: dict[str, Sequence] = {}
        self.num_preempted = self.num_long = 0
        self.causes: list[str] = []

    def add(self) -> None:
        rng, name = self.rng, str(len(self.sequences))
        num_prompt, num_output = rng.randint(1, rng.choice([10, 40])), rng.randint(1, 16)
        priority, prefill_only = rng.choice([0, 0, -2, 1]), rng.random() < 0.1
        deadline = self.deadlines.choice([math.inf, math.inf, 5.0, self.deadlines.random()])
        tenant = self.tenants.choice(sorted(self.weights))
        if len(self.weights) > 1 and self.tenants.random() < 0.2:
            priority = 1001
        prompt = [rng.randrange(49) for _ in range(num_prompt)]
        self.sequences[name] = self.simulation.add(
            make_request(
                name,
                prompt,
                block_size=4,
                sampling=SamplingParams(max_tokens=num_output),
                priority=priority,
                deadline=deadline,
                prefill_only=prefill_only,
                tenant=tenant,
                weight=self.weights[tenant],
            )
        )
        most = min(num_prompt + num_output, MAX_MODEL_LEN)
        arrival = self.simulation.num_arrivals
        self.naive.add(
            NaiveSequence(
                name,
                priority,
                deadline,
                arrival,
                num_prompt,
                most,
                prefill_only=prefill_only,
                flow=(priority > MAX_INTERACTIVE_PRIORITY, tenant),
            ),
            self.weights[tenant],
        )

    def end(self, name: str) -> None:
        """Free what is held, or not yet over."""
        self.simulation.scheduler.finish(self.sequences[name])
        self.naive.finish(name)

    def step(self) -> None:
        planned = self.naive.plan()
        scheduled = self.simulation.step()
        found = [(e.sequence.sequence_id, e.num_new_tokens) for e in scheduled.batch]
        assert found == planned
        assert scheduled.num_preempted == len(self.naive.preempted)
        self.num_preempted += scheduled.num_preempted
        self.causes += [preemption.cause for preemption in scheduled.preempted]
        self.num_long += any(e.is_prefill and not e.samples for e in scheduled.batch)
        for entry in scheduled.batch:
            name, sequence = entry.sequence.sequence_id, entry.sequence
            if sequence.state is SequenceState.HELD:
                self.end(name)
            elif sequence.state is SequenceState.FINISHED:
                self.naive.finish(name)
            elif entry.samples:
                self.naive.sampled(name)

    def run(self, num_sequences: int) -> None:
        while len(self.sequences) < num_sequences or self.naive.sequences:
            if len(self.sequences) < num_sequences and self.rng.random() < 0.5:
                self.add()
            if self.naive.sequences and self.rng.random() < 0.02:
                self.end(self.rng.choice(sorted(self.naive.sequences)))
            self.step()


@pytest.mark.slow
@pytest.mark.parametrize("num_tenants", [1, 2, 4])
@pytest.mark.parametrize("number", range(5))
def test_every_step_is_the_planned_one(seed: int, number: int, num_tenants: int) -> None:
    caller = Caller(1000 * seed + number, num_tenants)
    caller.run(num_sequences=120)
    assert not len(caller.simulation.scheduler)


@pytest.mark.slow
def test_the_plans_have_preemptions_and_long_prompts() -> None:
    callers = [Caller(number) for number in range(12)]
    for caller in callers:
        caller.run(num_sequences=80)
    assert sum(caller.num_preempted for caller in callers) > 8
    assert sum(caller.num_long for caller in callers) > 100


@pytest.mark.slow
def test_the_plans_of_several_share_steps_and_take_from_who_holds_much() -> None:
    callers = [Caller(number, 4) for number in range(8)]
    for caller in callers:
        caller.run(num_sequences=80)
    assert sum(caller.naive.num_shared for caller in callers) > 100
    causes = Counter(cause for caller in callers for cause in caller.causes)
    assert min(causes[SHARE], causes[GROWTH]) > 3, causes
