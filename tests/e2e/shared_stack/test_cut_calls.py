"""Enforced calls that the limit of tokens cuts, anywhere: no mark of one is shown as text."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUESTION = "What news from the battle, good my lord?"
CITY = {"type": "string", "maxLength": 16}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
LIMITS = [*range(1, 13), 16, 20, 24]
MARKS = ("<tool_call", "tool_call>")


def asked(
    stack: Stack, path: str, body: dict[str, Any], *, stream: bool
) -> tuple[str, dict[str, Any]]:
    """Return the raw answer and the whole of it, from the last event where it is a stream."""
    with stack.http() as http:
        answer = http.post(path, json={"model": stack.model, **body, "stream": stream})
    assert answer.status_code == 200, answer.text
    return answer.text, {} if stream else answer.json()


def events(raw: str) -> Iterator[dict[str, Any]]:
    for line in raw.splitlines():
        if line.startswith("data: "):
            yield orjson.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_in_messages(any_stack: Stack, choice: dict[str, Any], stream: bool) -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    kinds = set()
    for limit in LIMITS:
        body = {
            "messages": [{"role": "user", "content": QUESTION}],
            "tools": [tool], "tool_choice": choice, "max_tokens": limit,
        }  # fmt: skip
        raw, whole = asked(any_stack, "/v1/messages", body, stream=stream)
        if stream:
            found = list(events(raw))
            blocks = [e["content_block"] for e in found if e["type"] == "content_block_start"]
            deltas = {e["delta"]["type"] for e in found if e["type"] == "content_block_delta"}
            assert deltas <= {"input_json_delta"}
            (reason,) = [e["delta"]["stop_reason"] for e in found if e["type"] == "message_delta"]
        else:
            blocks, reason = whole["content"], whole["stop_reason"]
        assert [block["type"] for block in blocks] in ([], ["tool_use"])
        assert all(block["name"] == "weather" for block in blocks)
        assert not any(mark in raw for mark in MARKS), raw
        kinds.add((reason, len(blocks)))
    assert {("max_tokens", 0), ("max_tokens", 1)} <= kinds  # cut before the name, and after it


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_in_responses(any_stack: Stack, choice: Any, stream: bool) -> None:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    kinds = set()
    for limit in LIMITS:
        body = {
            "input": QUESTION, "tools": [tool], "tool_choice": choice, "max_output_tokens": limit,
        }  # fmt: skip
        raw, whole = asked(any_stack, "/v1/responses", body, stream=stream)
        if stream:
            found = list(events(raw))
            whole = found[-1]["response"]
            assert not any(".output_text." in e["type"] for e in found)
            assert not any(".content_part." in e["type"] for e in found)
        items = whole["output"]
        assert [item["type"] for item in items] in ([], ["function_call"])
        assert all(item["name"] == "weather" for item in items)
        assert not any(mark in raw for mark in MARKS), raw
        if whole["status"] == "incomplete":
            assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        kinds.add((whole["status"], len(items)))
    assert {("incomplete", 0), ("incomplete", 1)} <= kinds
