"""Outputs of each family: calls, reasoning and content, whatever the pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects.dialect import NAMES, Dialect
from pagoda_gateway.dialects.families import deepseek, kimi
from pagoda_gateway.dialects.families.deepseek import DeepSeek
from pagoda_gateway.dialects.families.glm import Glm
from pagoda_gateway.dialects.families.kimi import Kimi
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.dialects.parts import (
    CallArguments,
    CallStart,
    ContentText,
    Part,
    ReasoningText,
)

TOOLS = [Tool("look"), Tool("go")]
MARKS = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<think>",
    "</think>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "[CALL_ID]",
    "<function=go>", "</function>", "<parameter=a>", "</parameter>", "<seed:tool_call>",
    "</seed:tool_call>", *Glm.marks, *Kimi.marks, *DeepSeek.marks,
]  # fmt: skip
FRAGMENTS = [
    *MARKS, "<", "[", "{", "}", "]", ",", ";", ":", '"', "\\", "\n", " ", "x", "look", "é",
    '"name": "look"', '"name": "nobody"', '"arguments": {"a": "}\\"{"}', '"parameters": {}',
    "analysis", "final", " to=functions.look", "commentary", "<|", "assistant",
    "null", '"arguments": "{}"', "```json", "functions.go:0", "{'a': 1}", '"id": [1, {}]',
    '{"name": "go", "arguments": {"b": [1, 2]}}',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
VALUES = st.sampled_from([None, 1.5, [], [1, {"a": ["}"]}], {"b": {}}, '"', "\\", "{", *MARKS])
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES | st.text(max_size=8), max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["look", "go"]), OBJECTS), min_size=1, max_size=3)
NO_CALLS = {
    "hermes": [
        "a", "1 < 2", "{}", "<tool_call>x", "<tool_call><tool_call>x", "<tool_call>{}",
        '<tool_call> {"name": 5}</tool_call>', '<tool_call>{"id": {}, "type": [3]} y',
        '<tool_call>{"arguments": {"a": 1}}', '<tool_call>{"name": "", "arguments": {}}',
    ],
    "mistral": [
        "a", "1 < 2", "{}", "[TOOL_CALLS]is not", "[TOOL_CALLS][1]", "[TOOL_CALLS] [ARGS]{}",
        '[TOOL_CALLS] [ {"name": 5}]', "[TOOL_CALLS]look[ARGS]3", "[TOOL_CALLS][]",
        "[TOOL_CALLS]{}",
    ],
}  # fmt: skip
WHOLE = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {}}]',
}
OPENINGS = {
    "hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "deepseek": deepseek.CALLS,
    "kimi": kimi.SECTION,
}  # fmt: skip
BORDERS = st.lists(st.integers(0, 400), max_size=30)


def dialect(name: str, *, reasons: bool = False) -> Dialect:
    return Dialect.of("</think>" if reasons else "", name)


def read(name: str, text: str) -> tuple[str, list[PlainCall]]:
    content, _, calls = reading(parts_of(dialect(name).parser(TOOLS), [text]))
    return content, calls


def written(name: str, calls: list[tuple[str, dict[str, object]]], space: str) -> str:
    """Write calls as a model of the family does."""
    key = "parameters" if name == "llama3" else "arguments"
    objects = [json.dumps({"name": called, key: arguments}) for called, arguments in calls]
    if name == "hermes":
        blocks = [f"<tool_call>{space}{text}{space}</tool_call>" for text in objects]
        return space.join(blocks)
    if name == "llama3":
        return f"{space};{space}".join(objects)
    if name.startswith("deepseek"):
        form = "%s{sep}%s" if name == "deepseek" else "function{sep}%s\n```json\n%s\n```"
        form = deepseek.CALL + form.format(sep=deepseek.SEPARATOR) + deepseek.CALL_END
        blocks = [form % (called, json.dumps(arguments)) for called, arguments in calls]
        return f"{deepseek.CALLS}{space.join(blocks)}{deepseek.CALLS_END}{space}"
    if name == "kimi":
        form = f"<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>{space}%s"
        blocks = [
            form % (called, i, json.dumps(arguments)) + "<|tool_call_end|>"
            for i, (called, arguments) in enumerate(calls)
        ]
        return (
            "<|tool_calls_section_begin|>"
            + space.join(blocks)
            + "<|tool_calls_section_end|>"
            + space
        )
    if name == "mistral":
        return "[TOOL_CALLS]" + space + "[" + f",{space}".join(objects) + "]"
    return space.join(f"[TOOL_CALLS]{called}[ARGS]{json.dumps(args)}" for called, args in calls)


@pytest.mark.parametrize("name", ["", *NAMES])
@given(text=TEXTS, borders=BORDERS, inside=st.booleans())
def test_parts_do_not_depend_on_the_cuts(
    name: str, text: str, borders: list[int], inside: bool
) -> None:
    for found in (dialect(name or "auto"), dialect(name or "auto", reasons=True)):
        whole = parts_of(found.parser(TOOLS, prompt="<think>" * inside), [text])
        pieces = parts_of(found.parser(TOOLS, prompt="<think>" * inside), cut(text, borders))
        assert pieces == whole


@pytest.mark.parametrize(
    "name",
    ["hermes", "llama3", "mistral", "mistral, named", "deepseek", "deepseek, fenced", "kimi"],
)
@given(calls=CALLS, space=st.sampled_from(["", " ", "\n"]), borders=BORDERS)
def test_calls_are_read_as_they_are_written(
    name: str, calls: list[tuple[str, dict[str, object]]], space: str, borders: list[int]
) -> None:
    parser = dialect(name.split(",")[0]).parser(TOOLS)
    text = written(name, calls, space)
    content, _, found = reading(parts_of(parser, cut(text, borders)))
    assert content == ""
    assert found == [(called, json.dumps(arguments)) for called, arguments in calls]
    assert parser.has_calls


@pytest.mark.parametrize(
    "name", ["hermes", "mistral", "mistral, named", "deepseek", "deepseek, fenced", "kimi"]
)
@given(calls=CALLS, length=st.integers(0, 400))
def test_cut_off_calls_leave_no_marks(
    name: str, calls: list[tuple[str, dict[str, object]]], length: int
) -> None:
    text = "Well.\n" + written(name, calls, "\n")
    content, found = read(name.split(",")[0], text[:length])
    assert f"Well.\n{OPENINGS[name.split(',')[0]]}".startswith(content)
    whole = [(called, json.dumps(arguments)) for called, arguments in calls]
    assert [called for called, _ in found] == [called for called, _ in whole[: len(found)]]
    for (_, some), (_, all_of_it) in zip(found, whole, strict=False):
        assert all_of_it.startswith(some)
    assert all(pair == known for pair, known in zip(found[:-1], whole, strict=False))


@pytest.mark.parametrize("name", ["hermes", "mistral"])
@given(data=st.data())
def test_what_is_no_call_is_content(name: str, data: st.DataObject) -> None:
    segments = data.draw(st.lists(st.sampled_from([*NO_CALLS[name], WHOLE[name]]), max_size=8))
    text = "".join(segments) + "."
    content, calls = read(name, text)
    assert content == text.replace(WHOLE[name], "")
    assert calls == [("look", "{}")] * segments.count(WHOLE[name])


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("hermes", 'A\n<tool_call>{"name": "x", "arguments": {}}\n</tool_call>\nB', "A\n\nB",
         [("x", "{}")]),
        ("hermes", '<tool_call>{"arguments": {"a" : 1}, "id": 3, "name": "look"}</tool_call>', "",
         [("look", '{"a" : 1}')]),
        ("hermes", '<tool_call>{"name": "look"}</tool_call>', "", [("look", "{}")]),
        ("hermes", '<tool_call>{"name": "l\\u006fok", "arg', "", [("look", "")]),
        ("hermes", "Say <tool_call> once", "Say <tool_call> once", []),
        ("hermes", '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ("hermes", '<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}</tool_call>', "",
         [("x", '{"a": 1}')]),
        ("hermes", '<tool_call>{"arguments": "{}", "name": "x"}</tool_call>', "", [("x", "{}")]),
        ("hermes", '<tool_call>{"name": "x", "arguments": "[]"}.', '<tool_call>{"name": "x", '
         '"arguments": "[]"}.', []),
        ("hermes", '<tool_call>{"name": "x", "arguments": "{"}.', '<tool_call>{"name": "x", '
         '"arguments": "{"}.', []),
        ("hermes", '<tool_call>{"name": "x", "arguments": "{\\"a', "", [("x", "")]),
        ("hermes", '<tool_call>{"name": "x", "arguments": null}</tool_call>', "", [("x", "{}")]),
        ("hermes", '<tool_call>{"arguments": null, "name": "x"}</tool_call>', "", [("x", "{}")]),
        ("hermes", '<tool_call>{"name": "x", "arguments": true}.', '<tool_call>{"name": "x", '
         '"arguments": true}.', []),
        ("hermes", '<tool_call>\n{"name": "x"}\n{"name": "y", "arguments": {}}\n</tool_call>\n',
         "", [("x", "{}"), ("y", "{}")]),
        ("hermes", '<tool_call>{"name": "x"} {"y": 1}</tool_call>.', ' {"y": 1}</tool_call>.',
         [("x", "{}")]),
        ("hermes", '<tool_call>{"name": "x", "arguments": {}}}', "}", [("x", "{}")]),
        ("hermes", '<tool_call>{"id": 1}', '<tool_call>{"id": 1}', []),
        ("hermes", " \n", " \n", []),
        ("llama3", '<|python_tag|>{"name": "look", "parameters": {}}', "", [("look", "{}")]),
        ("llama3", '<|python_tag|>print(1)', "<|python_tag|>print(1)", []),
        ("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
        ("llama3", '{"name": "look", "parameters": {}}; {"name": "Bob"}', '; {"name": "Bob"}',
         [("look", "{}")]),
        ("llama3", '{"name": "look", "parameters": {}};', "", [("look", "{}")]),
        ("llama3", '{"name": "look", "parameters": {}}\n{"name": "go", "parameters": {"a": 1}}', "",
         [("look", "{}"), ("go", '{"a": 1}')]),
        ("llama3", '{"name": "look", "parameters": {}}\n{"a": 1}', '\n{"a": 1}',
         [("look", "{}")]),
        ("llama3", '{"name": "look", "parameters": {}}\nDone', "\nDone", [("look", "{}")]),
        ("llama3", 'So: {"name": "look", "parameters": {}}',
         'So: {"name": "look", "parameters": {}}', []),
        ("llama3", '{"na', '{"na', []),
        ("mistral", "[TOOL_CALLS]look{}[TOOL_CALLS]go[ARGS] {}", "",
         [("look", "{}"), ("go", "{}")]),
        ("mistral", '[TOOL_CALLS]look[CALL_ID]abcdef123[ARGS]{"city": "Paris"}', "",
         [("look", '{"city": "Paris"}')]),
        ("mistral", "[TOOL_CALLS]look[CALL_ID]a1[ARGS]{}[TOOL_CALLS]go[CALL_ID]b2[ARGS]{}", "",
         [("look", "{}"), ("go", "{}")]),
        ("mistral", "[TOOL_CALLS]look[CALL_ID]ab", "", [("look", "")]),
        ("mistral", "[TOOL_CALLS]look[CALL_ID]a b", "[TOOL_CALLS]look[CALL_ID]a b", []),
        ("mistral", "[TOOL_CALLS]loo", "", []),
        ("mistral", "[TOOL_CALLS]look[AR", "", [("look", "")]),
        ("mistral", "[TOOL_CALLS]is a token", "[TOOL_CALLS]is a token", []),
        ("mistral", "[TOOL_CALLS][{}, 1]", "[TOOL_CALLS][{}, 1]", []),
    ],
)  # fmt: skip
def test_reading(name: str, text: str, content: str, calls: list[PlainCall]) -> None:
    assert read(name, text) == (content, calls)


def test_text_waits_only_while_it_may_be_a_mark() -> None:
    parser = dialect("hermes").parser(TOOLS)
    assert parser.push("a <tool") == [ContentText("a ")]
    assert parser.push("s> b ") == [ContentText("<tools> b ")]


def test_json_that_is_no_call_does_not_wait() -> None:
    parser = dialect("llama3").parser(TOOLS)
    assert reading(parser.push('{"city": 1')) == ('{"city": 1', "", [])
    assert parser.push(", ") == [ContentText(", ")]


def test_arguments_go_out_as_they_arrive() -> None:
    parser = dialect("hermes").parser(TOOLS)
    assert parser.push('<tool_call>\n{"name": "look"') == []
    assert parser.push(', "arguments": {"a"') == [CallStart(0, "look"), CallArguments(0, '{"a"')]
    assert parser.push(": [1") == [CallArguments(0, ": [1")]
    assert parser.push("]}}\n</tool") == [CallArguments(0, "]}")]
    assert parser.push("_call>") == []


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("<think>\na</think>\n\nb", False, [ReasoningText("\na"), ContentText("b")]),
        ("\na</think>\n\nb", True, [ReasoningText("\na"), ContentText("b")]),
        ("<think>a</think>b", True, [ReasoningText("a"), ContentText("b")]),
        ("\n<think>a </th", False, [ReasoningText("a </th")]),
        ("a <think>b</think>", False, [ContentText("a <think>b</think>")]),
        ("<think>\n\n</think>\n\n{", False, [ReasoningText("\n\n"), ContentText("{")]),
        (
            '<think><tool_call></think>\n\n<tool_call>\n{"name": "go", "arguments": {}}',
            False,
            [ReasoningText("<tool_call>"), CallStart(0, "go"), CallArguments(0, "{}")],
        ),
    ],
)
def test_reasoning(text: str, inside: bool, parts: list[Part]) -> None:
    parser = dialect("hermes", reasons=True).parser(TOOLS, prompt="<think>" * inside)
    assert parts_of(parser, text) == parts


def test_without_tools_marks_are_text() -> None:
    text = '<tool_call>{"name": "x", "arguments": {}}'
    parser = dialect("hermes").parser([])
    assert parts_of(parser, [text]) == [ContentText(text)]
    assert not parser.has_calls
