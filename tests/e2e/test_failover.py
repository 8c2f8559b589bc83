"""A decode worker killed in the middle of a stream: the stream goes on with the same tokens."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.greedy_oracle import GreedyOracle
from support.processes import busy_decode_workers
from support.report_schema import REPORT
from support.stack import running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 1500  # long enough to be killed in the middle
PROMPT = list(range(40))


def test_a_killed_decode_worker_costs_no_token(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "llama", max_position_embeddings=2048)
    environ = {
        "PAGODA_MODEL": str(checkpoint),
        "PAGODA_DTYPE": "float32",
        "PAGODA_TOPOLOGY": "prefill=1,decode=2",
    }
    with running_stack(tmp_path / "home", environ) as stack, stack.http() as http:
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
                    for worker in busy_decode_workers(stack.process.pid):
                        worker.kill()
            request_id = response.headers["x-request-id"]
        receipt = http.get(f"/v1/receipts/{request_id}").json()
    assert tokens == GreedyOracle(checkpoint).greedy(PROMPT, MAX_TOKENS)
    assert finishes == ["length"]
    assert [usage["completion_tokens"] for usage in usages] == [MAX_TOKENS]
    assert receipt["attempts"] == 2
    assert receipt["output_tokens"] == MAX_TOKENS


def test_a_killed_decode_worker_costs_no_token_of_a_grammar(tmp_path: Path) -> None:
    """The grammar goes on where the output was cut; what was forced is forced again."""
    schema = {"type": "array", "items": REPORT, "minItems": 12, "maxItems": 12}
    environ = {"PAGODA_TOPOLOGY": "prefill=1,decode=2", "PAGODA_DTYPE": "float32"}
    with running_stack(tmp_path / "home", environ) as stack:
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
                for worker in busy_decode_workers(stack.process.pid):
                    worker.kill()
        assert is_killed
        assert text == undisturbed.message.content
