"""Penalties of repetitions through the step loop: whole outputs, steps ahead, preemptions."""

import random

import pytest
from support.engine_driver import EngineDriver
from support.thread_queue import ThreadQueue
from support.tiny_engine import PROMPT, greedy, make_driver

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams

LOOPING = {7: 100.0, 8: 80.0}


def generate(model: LoadedModel, prompt: list[int], sampling: SamplingParams) -> list[int]:
    driver = make_driver(model)
    driver.add("a", prompt, sampling=sampling)
    return driver.run()["a"].token_ids


def test_dry_ends_a_loop_that_a_breaker_lets_go_on(tiny_model: LoadedModel) -> None:
    dry = {"dry_multiplier": 40.0, "dry_base": 2.0, "dry_allowed_length": 2, "logit_bias": LOOPING}
    assert generate(tiny_model, PROMPT, greedy(8, logit_bias=LOOPING)) == [7] * 8
    said = generate(tiny_model, PROMPT, greedy(8, **dry))
    assert said[:3] == [7, 7, 7]  # two tokens may be repeated
    assert said != [7] * 8
    broken = greedy(8, **dry, dry_sequence_breakers=(7,))
    assert generate(tiny_model, PROMPT, broken) == [7] * 8


def test_lz_ends_a_loop(tiny_model: LoadedModel) -> None:
    assert generate(tiny_model, PROMPT, greedy(4, logit_bias=LOOPING)) == [7] * 4
    said = generate(tiny_model, PROMPT, greedy(4, lz_penalty=4.0, logit_bias=LOOPING))
    assert said[:2] == [7, 8]


@pytest.mark.parametrize("num_blocks", [20, 9])
def test_steps_ahead_and_preemptions_change_nothing(
    tiny_model: LoadedModel, seed: int, num_blocks: int
) -> None:
    rng = random.Random(seed)
    queue = ThreadQueue(seed)
    config = EngineConfig(
        block_size=4, num_blocks=num_blocks, max_model_len=36, max_num_batched_tokens=16
    )
    driver = EngineDriver(tiny_model, config, queue=queue)
    expected = {}
    for name in map(str, range(8)):
        prompt = [rng.randrange(4) for _ in range(rng.randint(1, 15))]
        sampling = SamplingParams(
            max_tokens=20, seed=rng.randrange(99), ignore_eos=True, temperature=0.7,
            dry_multiplier=rng.choice([0.0, 1.0]), dry_base=2.0, dry_allowed_length=1,
            dry_sequence_breakers=(2,), lz_penalty=rng.choice([0.0, 0.3]),
            logit_bias=dict.fromkeys(range(4), 9.0), xtc_threshold=0.1,
            xtc_probability=rng.choice([0.0, 0.5]), typical_p=rng.choice([1.0, 0.9]),
        )  # fmt: skip
        driver.add(name, prompt, sampling=sampling)
        expected[name] = generate(tiny_model, prompt, sampling)
    outputs = driver.run()
    queue.close()
    assert {name: output.token_ids for name, output in outputs.items()} == expected
    if num_blocks == 9:
        assert sum(result.stats.num_preempted for result in driver.results) > 0


def test_an_output_goes_on_elsewhere_as_it_would_have_gone_on(tiny_model: LoadedModel) -> None:
    sampling = SamplingParams(
        max_tokens=24, seed=5, ignore_eos=True, dry_multiplier=1.0, dry_base=2.0, lz_penalty=0.2,
        logit_bias=dict.fromkeys(range(5), 8.0), xtc_threshold=0.1, xtc_probability=0.5,
    )  # fmt: skip
    whole = generate(tiny_model, PROMPT, sampling)
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=sampling, output_token_ids=tuple(whole[:10]))
    assert driver.run()["a"].token_ids == whole[10:]


def test_what_has_ended_keeps_no_tokens(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(3, dry_multiplier=1.0, lz_penalty=0.1))
    sequence = driver.engine._scheduler.waiting[0]
    driver.step()
    assert sequence.sampling_state._repeats is not None
    driver.run()
    assert sequence.sampling_state._repeats is None
