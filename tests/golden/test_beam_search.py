"""Beam search finds what transformers finds, token for token, in float32."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.engine_driver import EngineDriver
from support.oracle import Oracle

from pagoda_engine import BeamSearchParams, EngineConfig, SamplingParams
from pagoda_engine.sampling_params import EarlyStopping

MAX_TOKENS = 24
WIDTHS = (1, 2, 3, 4, 5)
BLOCK_SIZE = 4


def prompt_of(rng: random.Random) -> list[int]:
    return [rng.randrange(256) for _ in range(rng.randrange(1, 40))]


def make_driver(oracle: Oracle, **fields: Any) -> EngineDriver:
    values = {"block_size": BLOCK_SIZE, "num_blocks": 256, "max_model_len": 100}
    return EngineDriver(oracle.model, EngineConfig(**{**values, **fields}))


def searched(
    *,
    width: int,
    stop_token_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
) -> SamplingParams:
    return SamplingParams(
        max_tokens=MAX_TOKENS,
        min_tokens=min_tokens,
        temperature=0.0,
        ignore_eos=True,
        stop_token_ids=stop_token_ids,
        beam_search=BeamSearchParams(width, length_penalty, early_stopping),
    )


def found(driver: EngineDriver, sequence_id: str) -> list[list[int]]:
    hypotheses = driver.sequences[sequence_id].hypotheses
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    return [list(h.token_ids) for h in hypotheses]


def early_stops(oracle: Oracle, prompt: list[int], rng: random.Random) -> tuple[int, ...]:
    """Return tokens that likely outputs have at once, or soon."""
    outputs = oracle.beams(prompt, MAX_TOKENS, width=3)
    return tuple({output[rng.randrange(MAX_TOKENS // 2)] for output in outputs})


@pytest.mark.parametrize("seed", [1, 2])
def test_every_width_up_to_max_tokens(oracle: Oracle, seed: int) -> None:
    rng = random.Random(seed)
    prompts = {width: prompt_of(rng) for width in WIDTHS}
    driver = make_driver(oracle)
    for width, prompt in prompts.items():  # all at once: they share steps
        driver.add(str(width), prompt, sampling=searched(width=width))
    driver.run()
    for width, prompt in prompts.items():
        assert found(driver, str(width)) == oracle.beams(prompt, MAX_TOKENS, width=width)
    assert driver.engine.num_free_blocks == 256


def test_width_1_is_greedy(oracle: Oracle) -> None:
    prompt = prompt_of(random.Random(3))
    driver = make_driver(oracle)
    driver.add("beam", prompt, sampling=searched(width=1))
    driver.run()
    assert found(driver, "beam") == [oracle.greedy(prompt, MAX_TOKENS)]


@dataclass(frozen=True)
class EarlyCase:
    """A search that some outputs of leave before `MAX_TOKENS`."""

    width: int
    prompt: list[int]
    stop_token_ids: tuple[int, ...]
    min_tokens: int


@pytest.fixture(scope="module")
def early(make_oracle: Callable[..., Oracle]) -> tuple[Oracle, list[EarlyCase]]:
    """A model, and two searches of each width."""
    oracle, rng = make_oracle("llama", seed=4), random.Random(4)
    cases = []
    for width in 2 * WIDTHS:
        prompt = prompt_of(rng)
        stops = early_stops(oracle, prompt, rng)
        cases.append(EarlyCase(width, prompt, stops, min_tokens=rng.choice([0, 0, 5])))
    return oracle, cases


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.5, 0.0, 1.0, 2.0])
def test_outputs_that_end_early(
    early: tuple[Oracle, list[EarlyCase]], early_stopping: EarlyStopping, length_penalty: float
) -> None:
    oracle, cases = early
    driver = make_driver(oracle)
    num_early = 0
    for number, case in enumerate(cases):
        options: dict[str, Any] = {
            "width": case.width,
            "stop_token_ids": case.stop_token_ids,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
            "min_tokens": case.min_tokens,
        }
        driver.add(str(number), case.prompt, sampling=searched(**options))
        driver.run()
        outputs = found(driver, str(number))
        assert outputs == oracle.beams(case.prompt, MAX_TOKENS, **options)
        num_early += sum(len(output) < MAX_TOKENS for output in outputs)
    assert num_early, "no output ended early: nothing was tested"
