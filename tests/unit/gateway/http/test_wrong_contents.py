"""What is wrong within messages, blocks and items: each of it named, beside what else is wrong."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from pagoda_gateway.anthropic.schemas import CountTokensBody, MessagesBody
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.http.body import validated
from pagoda_gateway.http.further_problems import MAX_NAMED_ITEMS
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.contents import MAX_NAMED_PARTS
from pagoda_gateway.openai.schemas.tokens import TokenizeBody
from pagoda_gateway.responses.schemas import ConversationBody, NewItemsBody, ResponsesBody

USER = {"role": "user", "content": "x"}
TEXT = {"type": "text", "text": "x"}
VIDEO = {"type": "video"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def fails(schema: type[BaseModel], **fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        validated({"model": "tiny", **fields}, schema)
    return caught.value


def names(schema: type[BaseModel], wanted: list[str], **fields: Any) -> str:
    """Check that an error names just these places; return its message."""
    error = fails(schema, **fields)
    message = str(error)
    assert error.param == wanted[0]
    assert re.findall(r"(?:^|; )'([^']*)'", message) == wanted
    return message


@pytest.mark.parametrize(
    ("content", "place", "why"),
    [
        ([{"type": "image_url", "image_url": {}}], "[0]", "has type 'image_url'; this model takes"),
        ([TEXT, {"type": "text"}], "[1].text", "is required"),
        ([{"type": "text", "text": 5}], "[0].text", "must be text, not 5"),
        ([{"type": "refusal", "refusal": None}], "[0].refusal", "must be text, not None"),
        (["x"], "[0]", "has type None"),
        ([{"type": ["text"]}], "[0]", "has type ['text']"),
    ],
)
@pytest.mark.parametrize("schema", [ChatBody, TokenizeBody])
def test_a_part_of_a_message(schema: type[BaseModel], content: Any, place: str, why: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    message = names(schema, [f"messages[1].content{place}"], messages=messages)
    assert f"content{place}' {why}" in message


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ({"type": "mcp", "mcp": {}}, ".type"),
        ({"type": "custom", "custom": {}}, ".custom"),
        ({"id": 5, "type": "function", "function": {"name": "x", "arguments": ""}}, ".id"),
        ({"type": "function"}, ".function"),
        ({"type": "function", "function": {"arguments": "{}"}}, ".function.name"),
        ({"type": "function", "function": {"name": "", "arguments": "{}"}}, ".function.name"),
        ({"type": "function", "function": {"name": "x", "arguments": []}}, ".function.arguments"),
    ],
)
def test_a_call_of_the_history(call: dict[str, Any], place: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL, call, call]}
    wanted = [f"messages[1].tool_calls[{i}]{place}" for i in (1, 2)]
    names(ChatBody, wanted, messages=[USER, message])


def test_the_older_call_of_the_history() -> None:
    message = {"role": "assistant", "function_call": {}}
    names(ChatBody, ["messages[0].function_call.name"], messages=[message])
    validated({"model": "tiny", "messages": [{**message, "tool_calls": [CALL]}]}, ChatBody)


def test_parts_and_calls_of_several_messages_beside_fields() -> None:
    bad = {"role": "assistant", "content": [VIDEO, TEXT, VIDEO], "tool_calls": [{"type": "x"}]}
    names(
        ChatBody,
        [
            "temperature",
            "messages[1].tool_calls[0].type",
            "messages[1].content[0]",
            "messages[1].content[2]",
            "messages[2].content[0]",
        ],
        messages=[USER, bad, {"role": "user", "content": [VIDEO]}],
        temperature=5,
    )


def test_only_the_first_few_parts_and_messages_are_named() -> None:
    parts = [TEXT, *[VIDEO] * (MAX_NAMED_PARTS + 1)]
    message = str(fails(ChatBody, messages=[{"role": "user", "content": parts}]))
    assert f"content[{MAX_NAMED_PARTS}]'" in message
    assert f"content[{MAX_NAMED_PARTS + 1}]'" not in message
    bad = [{"role": "user", "content": [VIDEO]}] * (MAX_NAMED_ITEMS + 1)
    message = str(fails(ChatBody, messages=bad))
    assert f"'messages[{MAX_NAMED_ITEMS - 1}].content[0]'" in message
    assert f"'messages[{MAX_NAMED_ITEMS}].content[0]'" not in message


@pytest.mark.parametrize("schema", [MessagesBody, CountTokensBody])
def test_blocks(schema: type[BaseModel]) -> None:
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}
    thinking = {"type": "thinking", "thinking": "hm"}
    redacted = {"type": "redacted_thinking", "data": "?"}
    good: dict[str, Any] = {"model": "tiny", "max_tokens": 1}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [TEXT, result, {**result, "content": None}]},
        {"role": "assistant", "content": [thinking, redacted, TEXT, use]},
        {"role": "system", "content": [TEXT]},
    ]
    validated({**good, "messages": turns, "system": [TEXT]}, schema)
    wrong = [
        {"role": "user", "content": [use, {**result, "content": [TEXT, VIDEO]}]},
        {"role": "user", "content": [{**result, "content": 5}, {**result, "tool_use_id": 5}]},
        {
            "role": "assistant",
            "content": [result, {**use, "input": "{}"}, {"type": "thinking"}, {**use, "name": ""}],
        },
        {"role": "system", "content": [use]},
        {"role": "poet", "content": [use]},
    ]
    names(
        schema,
        [
            "messages[0].content[0]",
            "messages[0].content[1].content[1]",
            "messages[1].content[0].content",
            "messages[1].content[1]",
            "messages[2].content[0]",
            "messages[2].content[1]",
            "messages[2].content[2]",
            "messages[2].content[3]",
            "messages[3].content[0]",
            "messages[4].role",
            "system[1]",
            "thinking.budget_tokens",
        ],
        max_tokens=1,
        messages=wrong,
        system=[TEXT, VIDEO],
        thinking={"type": "enabled", "budget_tokens": -1},
    )


ITEMS: list[Any] = [
    {"type": "message", "role": "user", "content": "x"},
    {"role": "poet", "content": "x"},
    {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image"}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": {}},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
    {"type": "function_call_output", "call_id": "c", "output": 5},
    {"type": "reasoning"},
    {"type": "item_reference"},
    {"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"},
]
WRONG = [
    "[1]", "[2].content[1]", "[3]", "[4].output[0].text", "[5].output", "[7]", "[8]",
]  # fmt: skip


def test_items_of_input() -> None:
    wanted = [f"input{place}" for place in WRONG]
    names(ResponsesBody, [*wanted, "top_p"], input=[*ITEMS], top_p=2)
    names(ResponsesBody, [*wanted, "input[9]"], input=[*ITEMS, "x"])


def test_all_parts_of_an_item_beside_other_items() -> None:
    parts = [{"type": "input_image"}, {"type": "input_text"}, {"type": "input_image"}]
    items = [
        {"role": "user", "content": parts},
        {"type": "function_call_output", "call_id": "c", "output": parts},
        "x",
    ]
    names(
        ResponsesBody,
        [
            "input[0].content[0]",
            "input[0].content[1].text",
            "input[0].content[2]",
            "input[1].output[0]",
            "input[1].output[1].text",
            "input[1].output[2]",
            "input[2]",
        ],
        input=items,
    )
    result = {"type": "tool_result", "tool_use_id": "c", "content": [VIDEO, TEXT, VIDEO]}
    names(
        MessagesBody,
        [f"messages[0].content[{i}].content[{j}]" for i in (0, 1) for j in (0, 2)],
        max_tokens=1,
        messages=[{"role": "user", "content": [result, result]}],
    )


@pytest.mark.parametrize("schema", [ConversationBody, NewItemsBody])
def test_items_of_a_conversation(schema: type[BaseModel]) -> None:
    names(schema, [f"items{place}" for place in WRONG], items=ITEMS)


@pytest.mark.parametrize("schema", [ChatBody, TokenizeBody])
@pytest.mark.parametrize("calls", [{"tool_calls": [CALL]}, {"function_call": CALL["function"]}])
def test_calls_cannot_be_gone_on_with(schema: type[BaseModel], calls: dict[str, Any]) -> None:
    messages = [USER, {"role": "assistant", "content": "x", **calls}]
    fields = {"messages": messages, "add_generation_prompt": False}
    validated({"model": "tiny", **fields}, schema)
    names(schema, ["continue_final_message"], **fields, continue_final_message=True)


@pytest.mark.parametrize("schema", [ChatBody, TokenizeBody])
def test_template_variables_are_none_of_the_fields(schema: type[BaseModel]) -> None:
    wanted = ["chat_template_kwargs.tools", "chat_template_kwargs.add_generation_prompt"]
    names(
        schema,
        wanted,
        messages=[USER],
        chat_template_kwargs={"add_generation_prompt": False, "tools": [], "x": 1},
    )


@pytest.mark.parametrize(
    ("schema", "kind", "fields"),
    [
        (ResponsesBody, "function", {"input": "x"}),
        (MessagesBody, "custom", {"messages": [USER], "max_tokens": 1}),
    ],
)
def test_tools_of_one_name_beside_others_that_are_wrong(
    schema: type[BaseModel], kind: str, fields: dict[str, Any]
) -> None:
    tools: list[Any] = [{"type": kind, "name": name} for name in ("a", "b", "c", "a", "b")]
    tools[2]["name"] = 5
    tools.insert(3, "d")
    wanted = ["tools[2].name", "tools[3]", "tools[4].name", "tools[5].name"]
    message = names(schema, wanted, tools=tools, **fields)
    assert "'tools[4].name' is 'a'" in message
    del tools[2:4]
    names(schema, ["tools[2].name", "tools[3].name"], tools=tools, **fields)
