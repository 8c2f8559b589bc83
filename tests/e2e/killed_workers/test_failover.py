"""Processes killed in the middle: streams and batches go on with the same tokens."""

import json
import time
from typing import Any

import jsonschema
import openai
import pytest
from openai.types import Batch
from support.batch_files import answers, numbered
from support.demo import DEMO_MODEL
from support.processes import gateway_of, kill_a_busy_decode_worker
from support.report_schema import REPORT
from support.stack import Stack
from support.tiny_engine import greedy, make_driver

from pagoda_engine import EngineConfig, load_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

MAX_TOKENS = 1500  # long enough to be killed in the middle
PROMPT = list(range(40))
NUM_LINES = 60
LINE = {"model": "demo", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def drawn_alone() -> list[int]:
    """Return what one engine, which nobody kills, says after `PROMPT`."""
    model = load_model(DEMO_MODEL, EngineConfig(dtype="float32"))
    driver = make_driver(model, block_size=16, num_blocks=128, max_model_len=2048)
    return driver.generate([PROMPT], sampling=greedy(MAX_TOKENS))[0]


def test_a_killed_decode_worker_costs_no_token(stack: Stack) -> None:
    with stack.http() as http:
        body = {
            "model": stack.model,
            "prompt": PROMPT,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tokens: list[int] = []
        finishes, usages, is_killed = [], [], False
        with http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                for choice in chunk["choices"]:
                    tokens += choice["token_ids"]
                    finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
                usages += [chunk["usage"]] if chunk.get("usage") else []
                if len(tokens) >= 10 and not is_killed:
                    is_killed = True
                    kill_a_busy_decode_worker(stack.process.pid)
            request_id = response.headers["x-request-id"]
        receipt = http.get(f"/v1/receipts/{request_id}").json()
    assert tokens == drawn_alone()
    assert finishes == ["length"]
    assert [usage["completion_tokens"] for usage in usages] == [MAX_TOKENS]
    assert receipt["attempts"] == 2
    assert receipt["output_tokens"] == MAX_TOKENS


def test_a_killed_decode_worker_costs_no_token_of_a_grammar(stack: Stack) -> None:
    """The grammar goes on where the output was cut; what was forced is forced again."""
    schema = {"type": "array", "items": REPORT, "minItems": 12, "maxItems": 12}
    asked: dict[str, Any] = {
        "model": stack.model,
        "messages": [{"role": "user", "content": "What news from the battle, good my lord?"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "strict": True, "schema": schema},
        },
        "seed": 11,
        "max_tokens": 1200,
    }
    chats = stack.openai().chat.completions
    undisturbed = chats.create(**asked).choices[0]
    jsonschema.validate(json.loads(undisturbed.message.content), schema)
    text, is_killed = "", False
    for chunk in chats.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
        if len(text) > 100 and not is_killed:
            is_killed = True
            kill_a_busy_decode_worker(stack.process.pid)
    assert is_killed
    assert text == undisturbed.message.content


def wait(client: openai.OpenAI, batch_id: str, num_answers: int) -> Batch:
    """Poll until so many lines are answered or the batch has ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            batch = client.batches.retrieve(batch_id)
        except Exception:  # the gateway is being started again
            time.sleep(0.1)
            continue
        assert batch.request_counts is not None
        assert batch.request_counts.failed == 0
        if batch.completed_at or batch.request_counts.completed >= num_answers:
            return batch
        time.sleep(0.05)  # another process
    raise AssertionError(f"{batch_id} has not {num_answers} answers after two minutes")


def test_a_batch_survives_whatever_is_killed(stack: Stack) -> None:
    client = stack.openai()
    file = client.files.create(file=("in.jsonl", numbered(NUM_LINES, **LINE)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    wait(client, batch.id, 10)
    gateway_of(stack.process.pid).kill()
    wait(client, batch.id, 25)
    kill_a_busy_decode_worker(stack.process.pid)
    ended = wait(client, batch.id, NUM_LINES + 1)
    assert ended.status == "completed"
    found = answers(client.files.content(ended.output_file_id or "").content)
    assert [line["custom_id"] for line in found] == [f"line-{i}" for i in range(NUM_LINES)]
    for line in (found[0], found[NUM_LINES // 2], found[-1]):
        asked = {**LINE, "prompt": line["custom_id"]}
        with stack.http() as http:
            direct = http.post("/v1/completions", json=asked).json()
        body = line["response"]["body"]
        assert body["choices"][0]["text"] == direct["choices"][0]["text"]
