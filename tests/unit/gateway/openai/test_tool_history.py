"""History with calls, through templates in each family's manner."""

import re
from dataclasses import replace
from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.messages import conversation_tokens
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.tool_history import MAX_VALUES
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer

# Asks whether content holds reasoning, as Qwen 3 does: none is not iterable.
QWEN = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
# Adds content to text; writes the whole function, and wants an id.
MISTRAL = (
    "{% for m in messages %}{% if m.tool_calls is defined %}[TOOL_CALLS]["
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{{ call.id[-9:] }}{% endfor %}]"
    "{% else %}{{ '[' + m.role + ']' + m.content }}{% endif %}{% endfor %}"
)
# Takes ids of 9 characters only, as Mistral's own do.
NINE = (
    "{% for m in messages %}{% for call in m.tool_calls %}"
    "{% if call.id is not defined or call.id | length != 9 %}{{ raise_exception('bad id') }}"
    "{% endif %}<{{ call.id }}>{% endfor %}{% if m.role == 'tool' %}"
    "{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('bad id') }}{% endif %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
)
# Adds the arguments to text.
DEEPSEEK = (
    "{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% for call in m['tool_calls'] %}"
    "{{ '<call>' + call['function']['name'] + ' ' + call['function']['arguments'] }}"
    "{% endfor %}{% endfor %}"
)
# Runs over the arguments; takes content of both kinds in a macro.
GLM = (
    "{% macro seen(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}<{{ part.text }}>{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}[{{ m.role }}]{{ seen(m.content) }}{% for call in m.tool_calls %}"
    "{% set args = call.function.arguments %}{% for key, value in args.items() %}"
    "{{ call.function.name }} {{ key }}={{ value }}{% endfor %}{% endfor %}{% endfor %}"
)
# Knows parts only.
VISION = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content[0].type == 'image' %}!{% endif %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
    "{% endfor %}{% endfor %}"
)
VISION_CALLS = (
    VISION.removesuffix("{% endfor %}")
    + "{% for call in m.tool_calls %}<call>{{ call.function.arguments.city }}</call>"
    "{% endfor %}{% endfor %}"
)
CALL = {
    "id": "call_00000001",
    "type": "function",
    "function": {"arguments": '{"city": "Paris"}', "name": "look"},
}
DEEP = '{"a":' * 300 + "1" + "}" * 300
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_00000001", "content": "sun"},
    {"role": "tool", "tool_call_id": "call_00000001", "content": "rain"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
]


async def prompt(
    tokenizer: ModelTokenizer, model: ServedModel, source: str, *messages: dict[str, Any]
) -> str:
    ids = await conversation_tokens(
        PromptMaker(tokenizer, ChatTemplate(source, {})),
        [Message.model_validate(message) for message in messages],
        model,
        tools=None,
        add_generation_prompt=True,
        continue_final_message=False,
        variables=None,
    )
    return tokenizer.decode(ids.token_ids, skip_special_tokens=False)


@pytest.fixture
def model(model: ServedModel) -> ServedModel:
    return replace(model, max_model_len=1000)


@pytest.mark.parametrize(
    ("source", "start", "call", "rest"),
    [
        (
            QWEN, "[assistant]", '<tool_call>look {"city": "Paris"}</tool_call>',
            "[tool]sun[tool]rain[user]a\nb",
        ),
        (
            MISTRAL, "[TOOL_CALLS][",
            '{"name": "look", "arguments": {"city": "Paris"}}_00000001',
            "][tool]sun[tool]rain[user]a\nb",
        ),
        (
            DEEPSEEK, "[assistant]", '<call>look {"city": "Paris"}',
            "[tool]sun[tool]rain[user]a\nb",
        ),
        (GLM, "[assistant]", "look city=Paris", "[tool]sun[tool]rain[user]<a><b>"),
        (VISION_CALLS, "[assistant]", "<call>Paris</call>", "[tool]sun[tool]rain[user]ab"),
    ],
)  # fmt: skip
async def test_every_family_renders(
    tokenizer: ModelTokenizer, model: ServedModel, source: str, start: str, call: str, rest: str
) -> None:
    found = await prompt(tokenizer, model, source, *HISTORY)
    assert found == f"[user]go{start}{call}{call}{rest}"


@pytest.mark.parametrize("text", ["", "{", "[1]", "5", "null", None, DEEP])
@pytest.mark.parametrize("source", [QWEN, DEEPSEEK])
async def test_arguments_that_are_no_object_are_none(
    tokenizer: ModelTokenizer, model: ServedModel, source: str, text: str | None
) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": text}}
    found = await prompt(
        tokenizer, model, source, {"role": "assistant", "content": "", "tool_calls": [call]}
    )
    assert "look {}" in found


async def test_ids_fit_a_template_that_wants_nine_characters(
    tokenizer: ModelTokenizer, model: ServedModel
) -> None:
    def call(call_id: str | None) -> dict[str, Any]:
        return {**CALL, "id": call_id}

    def result(call_id: str | None) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": "x"}

    calls = [call("call_1"), call("ABCdef123"), call(None), call("call-9999"), call(None)]
    history = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        *map(result, ("call-9999", None, "call_1", None, "ABCdef123")),
    ]
    found = await prompt(tokenizer, model, NINE, *history)
    ids = re.findall(r"<(\w{9})>", found)
    assert len(set(ids)) == 5
    assert ids[1] == "ABCdef123"
    assert re.findall(r"\((\w{9})\)", found) == [ids[3], ids[2], ids[0], ids[4], ids[1]]
    assert await prompt(tokenizer, model, NINE, *history) == found
    for index in (0, 3):  # the same in another conversation
        one = await prompt(tokenizer, model, NINE, {**history[0], "tool_calls": [calls[index]]})
        assert one == f"<{ids[index]}>"


async def test_no_calls_are_left_out(tokenizer: ModelTokenizer, model: ServedModel) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": []}
    assert await prompt(tokenizer, model, MISTRAL, message) == "[assistant]x"


async def test_function_call_is_a_call(tokenizer: ModelTokenizer, model: ServedModel) -> None:
    found = await prompt(
        tokenizer,
        model,
        QWEN,
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "look", "content": "sun"},
    )
    assert found == '[assistant]<tool_call>look {"city": "Paris"}</tool_call>[tool]sun'


async def test_arguments_may_be_an_object(tokenizer: ModelTokenizer, model: ServedModel) -> None:
    call = {**CALL, "function": {"name": "look", "arguments": {"city": "Paris"}}}
    for template in (QWEN, MISTRAL, DEEPSEEK, GLM):
        sent, usual = (
            {"role": "assistant", "content": "", "tool_calls": [each]} for each in (call, CALL)
        )
        assert await prompt(tokenizer, model, template, sent) == await prompt(
            tokenizer, model, template, usual
        )


@pytest.mark.parametrize("calls", [{}, {"tool_calls": []}, {"tool_calls": None}])
async def test_what_sdks_send_back_of_no_text(
    tokenizer: ModelTokenizer, model: ServedModel, calls: dict[str, Any]
) -> None:
    empty = {"role": "assistant", "content": None, **calls}
    assert await prompt(tokenizer, model, QWEN, empty) == "[assistant]"
    assert await prompt(tokenizer, model, QWEN, {**empty, "refusal": "no"}) == "[assistant]no"
    result = {"role": "tool", "content": None, "tool_call_id": "c"}
    assert await prompt(tokenizer, model, QWEN, result) == "[tool]"


async def test_refusals_are_text(tokenizer: ModelTokenizer, model: ServedModel) -> None:
    parts = [{"type": "refusal", "refusal": "no"}]
    message = {"role": "assistant", "content": parts}
    assert await prompt(tokenizer, model, QWEN, message) == "[assistant]no"
    assert await prompt(tokenizer, model, VISION, message) == "[assistant]no"


async def test_values_of_all_arguments_are_limited(
    tokenizer: ModelTokenizer, model: ServedModel
) -> None:
    text = '{"a": [' + "[]," * (MAX_VALUES // 4) + "1]}"
    call = {"type": "function", "function": {"name": "look", "arguments": text}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, call]}
    with pytest.raises(InvalidRequestError, match=f"the limit is {MAX_VALUES}") as caught:
        await prompt(tokenizer, model, QWEN, message)
    assert caught.value.param == "messages[0].tool_calls[1].function.arguments"
