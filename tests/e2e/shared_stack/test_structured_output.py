"""JSON, regex, choices and tools through the whole system: what ends is valid, always."""

import json
import re
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field
from support.report_schema import REPORT
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUESTION = [{"role": "user", "content": "What news from the battle, good my lord?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 16},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}


class News(BaseModel):
    mood: Literal["merry", "grave"]
    losses: int = Field(ge=0, le=9999)


def chat(stack: Stack, **options: Any) -> Any:
    options = {"max_tokens": 200, "messages": QUESTION, **options}
    return stack.openai().chat.completions.create(model=stack.model, **options)


def by_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def test_a_schema_holds_whatever_the_model_would_say(any_stack: Stack) -> None:
    for seed in range(8):
        choice = chat(
            any_stack, response_format=by_schema(REPORT), temperature=1.5, seed=seed
        ).choices[0]
        assert choice.finish_reason == "stop", (seed, choice.message.content)
        jsonschema.validate(json.loads(choice.message.content), REPORT)


def test_streamed_is_whole_and_logprobs_are_of_every_token_of_the_text(any_stack: Stack) -> None:
    options = {"response_format": by_schema(REPORT), "temperature": 1, "seed": 5}
    whole = chat(any_stack, **options)
    chunks = list(chat(any_stack, **options, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    explained = chat(any_stack, **options, logprobs=True)
    choice = explained.choices[0]
    jsonschema.validate(json.loads(choice.message.content), REPORT)
    spelled = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert spelled.decode() == choice.message.content
    assert len(choice.logprobs.content) == explained.usage.completion_tokens - 1  # and its end


def test_the_sdk_parses_into_a_model(any_stack: Stack) -> None:
    answer = any_stack.openai().chat.completions.parse(
        model=any_stack.model, messages=QUESTION, response_format=News, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, News)


def test_json_mode_is_an_object(any_stack: Stack) -> None:
    for seed in range(4):
        choice = chat(
            any_stack, response_format={"type": "json_object"}, seed=seed, max_tokens=100
        ).choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def test_regex_choice_and_grammar(any_stack: Stack) -> None:
    def text(**outputs: Any) -> str:
        body = {"structured_outputs": outputs}
        return str(chat(any_stack, extra_body=body, max_tokens=60).choices[0].message.content)

    assert re.fullmatch(r"[a-z]{3}-\d{2,4}", text(regex=r"[a-z]{3}-\d{2,4}"))
    assert text(choice=["yes", "no, my lord"]) in ("yes", "no, my lord")
    assert text(grammar='root ::= "ab" ("ab")? "c"') in ("abc", "ababc")
    assert re.fullmatch(r"x\d", text(grammar='start: "x" /[0-9]/'))


def test_completions_take_formats_too(any_stack: Stack) -> None:
    answer = any_stack.openai().completions.create(
        model=any_stack.model,
        prompt="KING:",
        max_tokens=200,
        extra_body={"response_format": by_schema(REPORT)},
    )
    jsonschema.validate(json.loads(answer.choices[0].text), REPORT)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_forced_call_is_a_call(any_stack: Stack, choice: str, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for seed in range(4):
        options = {
            "tools": [WEATHER, TIME],
            "tool_choice": named if choice == "named" else "required",
            "parallel_tool_calls": False,
            "temperature": 1.3,
            "seed": seed,
        }
        calls, reason, content = called(chat(any_stack, **options, stream=stream), stream=stream)
        assert reason == ("stop" if choice == "named" else "tool_calls")
        assert not content
        ((call_id, name, arguments),) = calls
        assert call_id.startswith("call_")
        function = next(t for t in (WEATHER, TIME) if t["function"]["name"] == name)["function"]
        jsonschema.validate(json.loads(arguments), function["parameters"])
        if choice == "named":
            assert name == "get_weather"


def called(answer: Any, *, stream: bool) -> tuple[list[tuple[str, str, str]], str, str]:
    """Return (id, name, arguments) of each call, the finish reason and the content."""
    if not stream:
        (choice,) = answer.choices
        found = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
        assert len({call_id for call_id, _, _ in found}) == len(found)
        return found, choice.finish_reason, choice.message.content or ""
    calls: list[list[str]] = []
    reasons, content = [], ""
    for chunk in answer:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                assert call.id
                assert call.type == "function"
                assert call.function.name
                calls.append([call.id, call.function.name, ""])
            else:
                assert call.index == len(calls) - 1
                assert call.id is None
                assert call.function.name is None
            calls[-1][2] += call.function.arguments or ""
    assert len(reasons) == 1
    return [(a, b, c) for a, b, c in calls], reasons[0], content


def test_a_call_cut_by_length_is_no_call(any_stack: Stack) -> None:
    choice = chat(any_stack, tools=[WEATHER], tool_choice="required", max_tokens=1).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert not choice.message.content


def test_tool_history_enters_the_prompt(any_stack: Stack) -> None:
    history = [
        *QUESTION,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    answer = chat(any_stack, messages=history, tools=[WEATHER], max_tokens=8)
    assert answer.usage.prompt_tokens > chat(any_stack, max_tokens=1).usage.prompt_tokens + 20


def test_a_bad_schema_is_refused_by_name(any_stack: Stack) -> None:
    with any_stack.http() as http:
        body = {"model": any_stack.model, "messages": QUESTION, "max_tokens": 8}
        for bad in ({"type": "strin"}, {"type": "array", "uniqueItems": True}):
            answer = http.post(
                "/v1/chat/completions", json={**body, "response_format": by_schema(bad)}
            )
            assert answer.status_code == 400, bad
            assert "response_format" in answer.json()["error"]["param"]


def test_a_tool_of_free_text_gets_what_its_pattern_allows(any_stack: Stack) -> None:
    grammar = {"syntax": "regex", "definition": r"(?:on|off)\n[0-9]{1,3}%"}
    described = {"name": "lamp", "format": {"type": "grammar", "grammar": grammar}}
    tool: Any = {"type": "custom", "custom": described}
    for seed in range(4):
        options = {"tools": [tool], "tool_choice": "required", "temperature": 1.5, "seed": seed}
        (call,) = (
            chat(any_stack, parallel_tool_calls=False, **options).choices[0].message.tool_calls
        )
        assert (call.type, call.custom.name) == ("custom", "lamp")
        assert re.fullmatch(grammar["definition"], call.custom.input)
