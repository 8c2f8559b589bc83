"""Beam search through the whole system: what transformers finds, also when a worker is killed."""

import json
from threading import Thread
from typing import Any

import httpx
import pytest
from support.demo import DEMO_MODEL
from support.greedy_oracle import GreedyOracle
from support.processes import kill_a_busy_decode_worker
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

PROMPT = list(range(40))
MAX_TOKENS = 24
LONG = 800  # long enough to be killed in the middle


def body_of(stack: Stack, **fields: Any) -> dict[str, Any]:
    return {
        "model": stack.model,
        "prompt": PROMPT,
        "max_tokens": MAX_TOKENS,
        "use_beam_search": True,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


def search(stack: Stack, **fields: Any) -> httpx.Response:
    with stack.http() as http:
        answer = http.post("/v1/completions", json=body_of(stack, **fields))
    assert answer.status_code == 200, answer.text
    return answer


def found(answer: httpx.Response) -> list[list[int]]:
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["token_ids"] for choice in choices]


def test_choices_are_those_of_transformers(stack: Stack) -> None:
    oracle = GreedyOracle(DEMO_MODEL)
    for width in (2, 4):
        answer = search(stack, n=width)
        assert found(answer) == oracle.beams(PROMPT, MAX_TOKENS, width=width)
        assert answer.json()["usage"]["completion_tokens"] == width * MAX_TOKENS
    stops = [outputs[3] for outputs in oracle.beams(PROMPT, MAX_TOKENS, width=3)]
    settings: dict[str, Any] = {"length_penalty": 0.5, "early_stopping": True}
    answer = search(stack, n=1, best_of=3, stop_token_ids=stops, **settings)
    expected = oracle.beams(PROMPT, MAX_TOKENS, width=3, stop_token_ids=stops, **settings)
    assert found(answer) == expected[:1]
    assert answer.json()["usage"]["completion_tokens"] == sum(map(len, expected))


def test_a_stream_has_the_choices_at_its_end(stack: Stack) -> None:
    whole = search(stack, n=2).json()["choices"]
    texts, reasons = ["", ""], ["", ""]
    body = body_of(stack, n=2, stream=True)
    with stack.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] += choice["text"]
                    reasons[choice["index"]] += choice["finish_reason"] or ""
    assert texts == [choice["text"] for choice in whole]
    assert reasons == ["length", "length"]


def test_a_killed_decode_worker_costs_a_pause(stack: Stack) -> None:
    expected = found(search(stack, n=3, max_tokens=LONG))
    answers = list[httpx.Response]()
    thread = Thread(target=lambda: answers.append(search(stack, n=3, max_tokens=LONG)))
    thread.start()
    kill_a_busy_decode_worker(stack.process.pid)
    thread.join()
    assert found(answers[0]) == expected
    with stack.http() as http:
        receipt = http.get(f"/v1/receipts/{answers[0].headers['x-request-id']}").json()
    assert receipt["attempts"] == 2
    assert receipt["output_tokens"] == 3 * LONG
