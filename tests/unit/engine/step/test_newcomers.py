"""A large step of one tenant is given up for another one's newcomer, and no token changes by it."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.engine_driver import EngineDriver, make_request
from support.tiny_engine import OTHER, PROMPT, greedy

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams, SequenceRequest, StepCost
from pagoda_engine.scheduler.sequence import Flow
from pagoda_engine.step.newcomers import COMPUTED_TIMES, Newcomers
from pagoda_kernels.cut import CutShortError

NUM_FLOOD = 6
COST = StepCost(base=1.0, per_decode=1.0)
"""By which two decodes are large enough."""


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.001
        return self.seconds


class Interrupted:
    """A model whose forward passes something else happens in, as other threads do it."""

    def __init__(self, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.once: Callable[[], None] | None = None
        self.num_cut = 0
        hidden = model.decoder.hidden

        def interrupted(*args: object, **fields: object) -> torch.Tensor:
            once, self.once = self.once, None
            if once is not None:
                once()
            try:
                return hidden(*args, **fields)  # type: ignore[arg-type]
            except CutShortError:
                self.num_cut += 1
                raise

        monkeypatch.setattr(model.decoder, "hidden", interrupted)


@pytest.fixture
def interrupted(tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    return Interrupted(tiny_model, monkeypatch)


def clocked(model: LoadedModel, **fields: object) -> EngineDriver:
    values = {"block_size": 4, "max_model_len": 100, **fields}
    return EngineDriver(model, EngineConfig(**values), clock=Clock())  # type: ignore[arg-type]


def flooded(model: LoadedModel) -> EngineDriver:
    driver = clocked(model, num_blocks=128)
    driver.engine.set_step_cost(COST)
    for i in range(NUM_FLOOD):
        driver.add(f"flood{i}", [i, *PROMPT], sampling=greedy(20), tenant=b"flood")
    for _ in range(3):
        driver.step()
    return driver


def newcomer(**fields: object) -> SequenceRequest:
    values = {"sampling": greedy(4), "tenant": b"small", **fields}
    return make_request("small", OTHER, block_size=4, **values)


def test_a_large_step_is_given_up_for_a_newcomer(
    tiny_model: LoadedModel, interrupted: Interrupted
) -> None:
    undisturbed = flooded(tiny_model)
    undisturbed.engine.add(newcomer())
    expected = undisturbed.run()
    driver = flooded(tiny_model)
    interrupted.once = lambda: driver.engine.announce(newcomer())
    result = driver.step()
    assert interrupted.num_cut == 1
    assert not result.outputs
    assert result.stats.num_sequences == 0
    assert result.stats.given_up_seconds > 0
    driver.engine.add(newcomer())
    assert "small" in {output.sequence_id for output in driver.step().outputs}
    found = driver.run()
    assert {name: s.token_ids for name, s in found.items()} == {
        name: s.token_ids for name, s in expected.items()
    }
    driver.check_compute_time()


@pytest.mark.parametrize(
    "fields",
    [{"tenant": b"flood"}, {"priority": 1_000_000}],
    ids=["the-same-tenant", "in-the-background"],
)
def test_it_is_not_for_everybody(
    tiny_model: LoadedModel, interrupted: Interrupted, fields: dict[str, object]
) -> None:
    driver = flooded(tiny_model)
    interrupted.once = lambda: driver.engine.announce(newcomer(**fields))
    assert len(driver.step().outputs) == NUM_FLOOD
    assert interrupted.num_cut == 0


def test_a_small_step_goes_on(tiny_model: LoadedModel, interrupted: Interrupted) -> None:
    driver = flooded(tiny_model)
    driver.engine.set_step_cost(replace(COST, base=100.0))
    interrupted.once = lambda: driver.engine.announce(newcomer())
    assert len(driver.step().outputs) == NUM_FLOOD
    assert interrupted.num_cut == 0


def test_a_tenth_is_lost_at_most(tiny_model: LoadedModel) -> None:
    """However many come, one after the other."""
    clock = Clock()
    newcomers = Newcomers(clock)
    batch = flooded(tiny_model).engine._scheduler.schedule().batch
    assert newcomers.begin(batch, COST) is not None
    clock.seconds += 2.0
    assert newcomers.was_cut() == pytest.approx(2.0, abs=0.01)
    clock.seconds += 2.0 * COMPUTED_TIMES - 0.1
    assert newcomers.begin(batch, COST) is None
    newcomers.end()
    clock.seconds += 0.2
    assert newcomers.begin(batch, COST) is not None


def test_who_was_announced_before_the_step_began_cuts_it_too(tiny_model: LoadedModel) -> None:
    newcomers = Newcomers(Clock())
    newcomers.announce("a", Flow(False, b"small"))
    driver = flooded(tiny_model)
    batch = driver.engine._scheduler.schedule().batch
    cut = newcomers.begin(batch, COST)
    assert cut is not None
    assert cut.is_asked
    newcomers.end()
    newcomers.take("a")
    cut = newcomers.begin(batch, COST)
    assert cut is not None
    assert not cut.is_asked


def test_who_comes_between_two_steps_cuts_none(tiny_model: LoadedModel) -> None:
    newcomers = Newcomers(Clock())
    batch = flooded(tiny_model).engine._scheduler.schedule().batch
    cut = newcomers.begin(batch, COST)
    newcomers.end()
    newcomers.announce("a", Flow(False, b"small"))
    assert cut is not None
    assert not cut.is_asked


def test_whatever_is_cut_the_tokens_are_the_same(
    tiny_model: LoadedModel, interrupted: Interrupted, seed: int
) -> None:
    """Drawn tokens, guesses, logprobs and chunks of prompts, in random company."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(256) for _ in range(rng.randrange(5, 60))] for _ in range(24)]
    samplings = [
        SamplingParams(
            max_tokens=rng.randrange(1, 25),
            temperature=rng.choice([0.0, 1.0]),
            seed=i,
            num_logprobs=rng.choice([None, 2]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            ignore_eos=True,
        )
        for i in range(len(prompts))
    ]
    tenants = [rng.choice([b"a", b"b", b"c"]) for _ in prompts]

    def run(are_announced: bool) -> EngineDriver:
        driver = clocked(tiny_model, num_blocks=64, max_num_batched_tokens=24, speculation="ngram")
        driver.engine.set_step_cost(replace(COST, per_prefill_token=0.5))
        for i, prompt in enumerate(prompts):
            fields = {"sampling": samplings[i], "tenant": tenants[i]}
            request = make_request(str(i), prompt, block_size=4, **fields)
            if are_announced:
                interrupted.once = lambda r=request: driver.engine.announce(r)  # type: ignore[misc]
                for _ in range(rng.randrange(1, 4)):
                    driver.step()
            driver.engine.add(request)
        driver.run()
        driver.check_compute_time()
        return driver

    expected, found = run(False).sequences, run(True).sequences
    assert interrupted.num_cut > 3
    for name, sequence in expected.items():
        assert found[name].token_ids == sequence.token_ids
        assert found[name].finish_reason is sequence.finish_reason
