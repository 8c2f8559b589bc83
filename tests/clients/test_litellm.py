"""LiteLLM, which speaks both APIs and judges errors by their words."""

import asyncio
import json

import pytest
from clients.shapes import QUESTION, TOO_LONG, Person

litellm = pytest.importorskip("litellm")

MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(params=["hosted_vllm", "openai", "anthropic"])
def options(server, request):
    """Each way LiteLLM has to reach such a server."""
    is_anthropic = request.param == "anthropic"
    return {
        "model": f"{request.param}/{server.model}",
        "api_base": server.url if is_anthropic else server.openai_url,
        "api_key": server.api_key,
        "messages": MESSAGES,
        "max_tokens": 60,
        "max_retries": 0,
    }


def test_stream_equals_whole(options):
    whole = litellm.completion(**options, temperature=0)
    chunks = list(
        litellm.completion(
            **options, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


def test_stop_ends_before_the_match(options):
    answer = litellm.completion(**options, temperature=0, stop=["e"])
    assert answer.choices[0].finish_reason == "stop"
    assert "e" not in answer.choices[0].message.content


def test_schema_is_kept(options):
    answer = litellm.completion(**{**options, "max_tokens": 200}, response_format=Person)
    Person.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_goes_round(options, stream):
    answer = litellm.completion(**options, tools=[TOOL], tool_choice=FORCED, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer), messages=MESSAGES)
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [*MESSAGES, message.model_dump(), result]
    again = litellm.completion(**{**options, "messages": history}, tools=[TOOL])
    assert again.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_errors_are_told_apart(options):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**options, "model": options["model"] + "-not"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**options, "api_key": "sk-wrong"})
    long = [{"role": "user", "content": TOO_LONG}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**options, "messages": long})


async def test_many_at_once(options):
    answers = await asyncio.gather(*(litellm.acompletion(**options) for _ in range(16)))
    assert all(answer.usage.completion_tokens > 0 for answer in answers)


def test_choices_and_logprobs(server):
    answer = litellm.completion(
        model=f"hosted_vllm/{server.model}",
        api_base=server.openai_url,
        api_key=server.api_key,
        messages=MESSAGES,
        max_tokens=4,
        n=2,
        logprobs=True,
        top_logprobs=2,
    )
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_text_completion(server):
    options = {
        "model": f"text-completion-openai/{server.model}",
        "api_base": server.openai_url,
        "api_key": server.api_key,
        "prompt": QUESTION,
        "max_tokens": 8,
        "temperature": 0,
    }
    whole = litellm.text_completion(**options)
    chunks = litellm.text_completion(**options, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == whole.choices[0].text


def test_responses(server):
    answer = litellm.responses(
        model=f"openai/{server.model}",
        api_base=server.openai_url,
        api_key=server.api_key,
        input=QUESTION,
        max_output_tokens=8,
    )
    assert answer.status in ("completed", "incomplete")
    assert answer.usage.output_tokens > 0
