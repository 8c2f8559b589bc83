"""Prompts in a pool too small for all of them, of a model whose layers have windows."""

import random

from pagoda_engine import KvSource, SamplingParams
from support.engine_driver import EngineDriver

NUM_PROMPTS = 12


def prompt_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1, 250) for _ in range(length)]


def prompts_that_share(rng: random.Random) -> list[list[int]]:
    """Prompts of which some begin with as much as windows hide, or with a part of it."""
    prefix = prompt_of(rng, 70)
    return [
        prefix[: rng.choice([0, 30, 70])] + prompt_of(rng, rng.randint(1, 90))
        for _ in range(NUM_PROMPTS)
    ]


def run_together(
    driver: EngineDriver,
    prompts: list[list[int]],
    sampling: SamplingParams,
    kv_source: KvSource,
) -> None:
    """Run prompts by their number to their ends, which evicts blocks; imports bring nothing."""
    for i, prompt in enumerate(prompts):
        driver.add(str(i), prompt, sampling=sampling, kv_source=kv_source)
    while driver.engine.has_work():
        for reservation in driver.step().reserved:
            if kv_source is not KvSource.COMPUTE:
                name, tokens = reservation.sequence_id, reservation.num_cached_tokens
                driver.engine.import_finished(name, num_computed_tokens=tokens)
    assert any(result.evicted for result in driver.results)
