"""Responses and conversations outlive the gateway that made them."""

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from support.processes import gateway_of
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

EOS_ID = "1"
ASKED: dict[str, Any] = {
    "model": "demo", "input": "hello", "max_output_tokens": 8, "temperature": 0,
}  # fmt: skip

LONG: dict[str, Any] = {"max_output_tokens": 1500, "extra_body": {"logit_bias": {EOS_ID: -100}}}


def found(client: openai.OpenAI, name: str, is_it: Callable[[Response], bool]) -> Response:
    """Poll until a response is as it should be."""
    deadline = time.monotonic() + 120
    response = None
    while time.monotonic() < deadline:
        try:
            response = client.responses.retrieve(name)
        except (openai.APIConnectionError, openai.InternalServerError):
            pass  # the gateway is being started again
        else:
            if is_it(response):
                return response
        time.sleep(0.2)  # another process
    raise AssertionError(f"after two minutes {name} is {response}")


def has_ended(response: Response) -> bool:
    return response.status not in ("queued", "in_progress")


def test_they_are_found_and_gone_on_with(stack: Stack) -> None:
    client = stack.openai()
    conversation = client.conversations.create()
    made = client.responses.create(**ASKED, conversation=conversation.id)
    behind = client.responses.create(**ASKED, background=True)
    ended = found(client, behind.id, has_ended)
    with client.responses.create(**ASKED | LONG, background=True, stream=True) as stream:
        cut = next(iter(stream)).response
        seen = next(event for event in stream if event.type == "response.output_text.delta")
    found(client, cut.id, lambda response: response.status == "in_progress")
    gateway_of(stack.process.pid).kill()
    again = found(client, behind.id, has_ended)
    assert again == ended
    assert client.responses.retrieve(made.id).output_text == made.output_text == ended.output_text
    on = client.responses.create(**ASKED, conversation=conversation.id)
    assert on.usage is not None
    assert made.usage is not None
    assert on.usage.input_tokens > made.usage.input_tokens + made.usage.output_tokens
    lost = found(client, cut.id, has_ended)
    assert lost.status == "failed"
    assert lost.error is not None
    assert "is billed" in lost.error.message
    last = seen.sequence_number
    (end,) = client.responses.retrieve(cut.id, stream=True, starting_after=last)
    assert (end.type, end.sequence_number, end.response) == ("response.failed", last + 1, lost)
