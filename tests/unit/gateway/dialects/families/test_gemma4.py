"""Gemma 4's calls, whose arguments are nearly JSON, and its channel of thoughts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.families.gemma4 import MAX_DEPTH
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.dialects.parts import CallArguments, CallStart

GEMMA = Dialect.of("'<|tool_call>call:' <|channel>thought <channel|>")
TOOLS = [Tool("look"), Tool("go")]


def in_gemmas_words(value: Any) -> str:
    """Write a value as the model's chat template does."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case bool():
            return "true" if value else "false"
        case dict():
            members = (f"{key}:{in_gemmas_words(item)}" for key, item in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(in_gemmas_words, value)) + "]"
    return str(value)  # None is written as Python has it


def call(name: str, arguments: str) -> str:
    return f"<|tool_call>call:{name}{arguments}<tool_call|>"


def read(text: str) -> tuple[str, str, list[PlainCall]]:
    return reading(parts_of(GEMMA.parser(TOOLS), [text]))


def test_the_template_shows_it() -> None:
    assert GEMMA.name == "gemma4"
    assert GEMMA.reasoning is not None
    assert (GEMMA.reasoning.open, GEMMA.reasoning.close) == ("<|channel>", "<channel|>")


KEYS = st.text("abc_-1", min_size=1, max_size=4)
TEXTS = st.text(max_size=6).filter(lambda text: '<|"|>' not in text)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e6, 1e6) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["look", "go"]), OBJECTS), min_size=1, max_size=3),
    borders=st.lists(st.integers(0, 300), max_size=20),
    as_json=st.booleans(),
)
def test_calls_come_back_as_they_were_written(
    calls: list[tuple[str, dict[str, Any]]], borders: list[int], as_json: bool
) -> None:
    write = json.dumps if as_json else in_gemmas_words
    text = "".join(call(name, write(arguments)) for name, arguments in calls)
    content, _, found = reading(parts_of(GEMMA.parser(TOOLS), cut(text, borders)))
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (call("go", "{}"), "", [("go", "{}")]),
        ("Well. " + call("go", "{ a : 1 , b : [ ] }") + " ", "Well. ",
         [("go", '{"a": 1, "b": []}')]),
        (call("go", "{a:three apples}"), "", [("go", '{"a": "three apples"}')]),
        (call("go", '{<|"|>a b<|"|>:1}'), "", [("go", '{"a b": 1}')]),
        ("<|tool_call>hello", "<|tool_call>hello", []),
        ("<|tool_call>call: {}", "<|tool_call>call: {}", []),
        ("<|tool_call>call:go []", "<|tool_call>call:go []", []),
        ("<|tool_call>call:g", "", []),
        ('<|tool_call>call:go{a:<|"|>Ro', "", [("go", '{"a": "Ro')]),
        ("<|tool_call>call:go{a:1", "", [("go", '{"a": ')]),
        ("call:go{}", "call:go{}", []),
    ],
)  # fmt: skip
def test_reading(text: str, content: str, calls: list[PlainCall]) -> None:
    assert read(text) == (content, "", calls)


def test_arguments_go_out_as_they_arrive() -> None:
    parser = GEMMA.parser(TOOLS)
    assert parser.push("<|tool_call>call:look{ci") == [CallStart(0, "look"), CallArguments(0, "{")]
    given = [part for part in parser.push('ty:<|"|>Ro') if isinstance(part, CallArguments)]
    assert "".join(part.text for part in given) == '"city": "Ro'
    assert parser.push('m"e<|') == [CallArguments(0, 'm\\"e')]
    rest = [part for part in parser.push('"|>}<tool_call|>') if isinstance(part, CallArguments)]
    assert "".join(part.text for part in rest) == '"}'


def test_depth_has_a_bound() -> None:
    deep = "[" * 100_000
    _, _, ((name, arguments),) = read(call("go", f"{{a:{deep}"))
    assert name == "go"
    assert arguments == '{"a": ' + "[" * (MAX_DEPTH - 1)


def test_thoughts_have_a_channel() -> None:
    text = "<|channel>thought\nhm\n<channel|>yes" + call("go", "{}")
    assert read(text) == ("yes", "\nhm\n", [("go", "{}")])
    marks = {mark: 1000 + i for i, mark in enumerate(GEMMA.marks)}
    words = {token_id: mark for mark, token_id in marks.items()}

    def decode(token_ids: Any) -> str:
        return "".join(words.get(i, chr(i)) for i in token_ids)

    count = GEMMA.reasoning_counter("", marks, decode)
    assert count is not None
    output = [marks["<|channel>"], *b"thought\nhm\n", marks["<channel|>"], *b"yes"]
    assert count(output) == len("thought\nhm\n")
    assert GEMMA.reasoning_counter("<|channel>thought\n<channel|>", marks, decode) is None
    rules = GEMMA.reasoning_grammar("", marks, 5)
    assert "max_tokens=5" in rules
    assert '"thought\\n"' in rules
