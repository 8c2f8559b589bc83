"""A seed gives the tokens of one engine alone, whichever processes computed them."""

from typing import Any

import pytest
from support.demo import DEMO_MODEL
from support.stack import Stack
from support.tiny_engine import make_driver

from pagoda_engine import EngineConfig, SamplingParams, load_model
from pagoda_gateway.openai.sampling.sampling_params import sequence_seed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPTS = [[11, 12, 13, 14], list(range(10, 70))]
NUM_CHOICES = 2
SEED = 11
SAMPLING: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "top_k": 50, "ignore_eos": True}
REPETITIONS: dict[str, Any] = {
    "dry_multiplier": 0.8, "dry_allowed_length": 1, "lz_penalty": 0.1, "xtc_probability": 0.5,
    "xtc_threshold": 0.01, "typical_p": 0.9, "top_n_sigma": 2.0,
}  # fmt: skip
BIAS = {5: 3.0, 6: 3.0}
ASKED = {
    "logit_bias": {str(token): bias for token, bias in BIAS.items()},
    "dry_sequence_breakers": [],  # else the gateway takes llama.cpp's
}


def drawn_alone(**options: Any) -> list[list[int]]:
    """Return what one engine draws, choice after choice."""
    model = load_model(DEMO_MODEL, EngineConfig(dtype="float32"))
    driver = make_driver(model, block_size=16, num_blocks=64, max_model_len=512)
    for number, prompt in enumerate(prompt for prompt in PROMPTS for _ in range(NUM_CHOICES)):
        seed = sequence_seed(SEED, sequence_index=number, num_choices=NUM_CHOICES)
        sampling = SamplingParams(**SAMPLING, seed=seed, **options)
        driver.add(str(number), prompt, sampling=sampling)
    drawn = driver.run()
    return [drawn[str(number)].token_ids for number in range(len(PROMPTS) * NUM_CHOICES)]


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [({}, {}), ({**REPETITIONS, **ASKED}, {**REPETITIONS, "logit_bias": BIAS})],
    ids=["plain", "repetitions"],
)
def test_a_seed_draws_what_one_engine_draws(
    stack: Stack, asked: dict[str, Any], drawn: dict[str, Any]
) -> None:
    body = {
        "model": stack.model, "prompt": PROMPTS, "n": NUM_CHOICES, "seed": SEED,
        "return_token_ids": True, **SAMPLING, **asked,
    }  # fmt: skip
    with stack.http() as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = [choice["token_ids"] for choice in answer.json()["choices"]]
    assert len({tuple(tokens) for tokens in found}) == len(found)
    assert found == drawn_alone(**drawn)
