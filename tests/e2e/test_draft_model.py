"""The whole stack with a draft says what an engine says without, and receipts count its tokens.

With prompts of its own and imported ones: tests/integration/worker/test_drafts.py.
"""

import shutil
from pathlib import Path

import httpx
import pytest
from support.demo import DEMO_MODEL
from support.stack import Stack, running_stack
from support.tiny_engine import make_driver

from pagoda_engine import EngineConfig, SamplingParams, load_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 120
PROMPTS = [[(i * 37) % 250 + 10 for i in range(length)] for length in (9, 21)]
MOST_ANSWERS = 400


def answered(stack: Stack, http: httpx.Client, seed: int) -> tuple[list[int], int]:
    """Return what the stack answers, and how many tokens its receipt says were accepted."""
    body = {
        "model": stack.model,
        "prompt": PROMPTS[seed % 2],
        "max_tokens": MAX_TOKENS,
        "temperature": 1.0,
        "seed": seed,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    receipt = http.get(f"/v1/receipts/{response.headers['x-request-id']}").json()
    return response.json()["choices"][0]["token_ids"], receipt["speculation"]["accepted_tokens"]


def answers_until_drafted(stack: Stack) -> tuple[list[list[int]], int]:
    """Return what the stack answers until its draft was asked and something was accepted, and that.

    When it is asked depends on what a forward seemed to take, so on who else had the machine.
    """
    found, num_accepted = [], 0
    with stack.http() as http:
        for seed in range(MOST_ANSWERS):
            tokens, accepted = answered(stack, http, seed)
            found.append(tokens)
            num_accepted += accepted
            if num_accepted and draft_seconds(stack):
                break
    return found, num_accepted


def draft_seconds(stack: Stack) -> float:
    return stack.metric("decode", "pagoda_speculation_draft_seconds_total")


def drawn_alone(num_answers: int) -> list[list[int]]:
    """Return what one engine draws without speculation."""
    model = load_model(DEMO_MODEL, EngineConfig(dtype="float32"))
    driver = make_driver(model, block_size=16, num_blocks=256, max_model_len=512)
    for seed in range(num_answers):
        sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=seed, ignore_eos=True)
        driver.add(str(seed), PROMPTS[seed % 2], sampling=sampling)
    drawn = driver.run()
    return [drawn[str(seed)].token_ids for seed in range(num_answers)]


def test_a_draft_changes_no_token_and_is_counted(tmp_path: Path) -> None:
    """The draft is the model itself: always right about what is drawn, though it hardly pays.

    It is asked now and then, to find out; within a quarter percent of all time, so not at once.
    """
    draft = shutil.copytree(DEMO_MODEL, tmp_path / "draft")
    drafted = {
        "PAGODA_DTYPE": "float32",
        "PAGODA_DRAFT_MODEL": str(draft),
        "PAGODA_TOPOLOGY": "aggregated",
    }
    with running_stack(tmp_path / "drafted", drafted) as stack:
        found, num_accepted = answers_until_drafted(stack)
        seconds = draft_seconds(stack)
        accepted = stack.metric("decode", "pagoda_speculation_accepted_tokens_total")
    assert found == drawn_alone(len(found))
    assert num_accepted == accepted > 0
    assert seconds > 0.0
