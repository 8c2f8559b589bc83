"""Olmo 3's calls: Python's, whose values are JSON, or nearly."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from support.output_parts import PlainCall, cut, parts_of, reading
from support.tiny_tokenizer import EOS_ID, byte_level_tokenizer

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.dialects.parts import CallArguments, CallStart
from pagoda_gateway.errors import InvalidRequestError, UnfollowableError

OLMO = Dialect.of("<functions>{{ tools | tojson }}</functions> <function_calls>")
TOOLS = [Tool("look"), Tool("go")]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("a\n\"'(),=<>\\ é1", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def call(name: str, values: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{k}={json.dumps(v)}' for k, v in values.items())})"


@given(
    values=st.dictionaries(st.sampled_from(["city", "x", "y_2"]), JSON),
    borders=st.lists(st.integers(0, 400), max_size=20),
)
def test_calls_come_back_as_they_were_written(values: dict[str, Any], borders: list[int]) -> None:
    text = f"Well.\n<function_calls>{call('look', values)}\ngo()</function_calls>"
    content, _, found = reading(parts_of(OLMO.parser(TOOLS), cut(text, borders)))
    assert content == "Well.\n"
    assert [name for name, _ in found] == ["look", "go"]
    assert json.loads(found[0][1]) == values
    assert found[1][1] == "{}"


@pytest.mark.parametrize(
    ("inside", "calls"),
    [
        ("look(city='it\\'s\\nRome', deep=True, x=None)",
         [("look", '{"city": "it\'s\\nRome", "deep": true, "x": null}')]),
        ("look(where={'x': True}, l=[1, 'a'])", [("look", '{"where": {"x":true}, "l": [1,"a"]}')]),
        ("\n look( city = Rome )\n", [("look", "{}")]),
        ("look(city=Rome)", [("look", '{"city": "Rome"}')]),
        ("look(a=1,), go()", [("look", '{"a": 1}'), ("go", "{}")]),
        ("look(a=)", [("look", '{"a": null}')]),
    ],
)  # fmt: skip
def test_what_is_nearly_json_is_read(inside: str, calls: list[PlainCall]) -> None:
    text = f"<function_calls>{inside}</function_calls>"
    for step in (1, 2, 3, 1000):
        parts = parts_of(OLMO.parser(TOOLS), cut(text, range(0, len(text), step)))
        assert reading(parts)[2] == calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<function_calls> is a tag", "<function_calls> is a tag", []),
        ("<function_calls></function_calls>", "<function_calls></function_calls>", []),
        ("<function_calls>lo", "", []),
        ("<function_calls>look(ci", "", [("look", "")]),
        ("<function_calls>look(city=", "", [("look", '{"city": ')]),
        ('<function_calls>look(city="Ro', "", [("look", '{"city": "Ro')]),
        ("<function_calls>look(city='Ro", "", [("look", '{"city": "Ro')]),
        ("<function_calls>look(a=1", "", [("look", '{"a": ')]),
        ("<function_calls>look(a=1)", "", [("look", '{"a": 1}')]),
        ("<function_calls>look(a=1)\n</func", "", [("look", '{"a": 1}')]),
        ("<function_calls>look(a=1) hm!", "hm!", [("look", '{"a": 1}')]),
    ],
)
def test_what_is_cut_or_no_call(text: str, content: str, calls: list[PlainCall]) -> None:
    for step in (1, 2, 3, 1000):
        parts = parts_of(OLMO.parser(TOOLS), cut(text, range(0, len(text), step)))
        found, _, got = reading(parts)
        assert (found.strip(), got) == (content, calls)


def test_texts_go_out_as_they_arrive() -> None:
    parser = OLMO.parser(TOOLS)
    assert parser.push("<function_calls>look(") == [CallStart(0, "look")]
    given = [p.text for p in parser.push('city="Ro') if isinstance(p, CallArguments)]
    assert "".join(given) == '{"city": "Ro'


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("required", "inside", "is_taken"),
    [
        ([], "", True),
        ([], "a=1", True),
        ([], "b=1", True),
        ([], "a=1, c=2", True),
        ([], "a=1c=2", False),
        ([], ", c=2", False),
        ([], "d=2", False),
        (["b"], "", False),
        (["b"], "b=1", True),
        (["b"], "a=1, b=1", True),
        (["b"], "a=1, c=1", False),
        (["b"], "b=1, c=1", True),
        (["c", "a"], "a=1, c=1", True),
        (["c", "a"], "a=1", False),
        (["c", "a"], 'a="x", c=1', False),
    ],
)
def test_arguments_are_held_to_the_schema(required: list[str], inside: str, is_taken: bool) -> None:
    tokenizer = LLTokenizer(byte_level_tokenizer().to_str(), eos_token=EOS_ID)
    tools = [Tool("f", {**SCHEMA, "required": required})]
    rules = OLMO.calls_grammar(Calls(tools, True, False, {}))
    matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
    ids = tokenizer.tokenize_str(f"<function_calls>f({inside})</function_calls>")
    assert (matcher.try_consume_tokens(ids) == len(ids)) is is_taken


def test_what_the_format_cannot_hold_is_refused() -> None:
    for tool in (Tool("a b"), Tool("a", {"properties": {"x y": {}}})):
        with pytest.raises(InvalidRequestError, match="ends a name"):
            OLMO.calls_grammar(Calls([tool], True, False, {}))
    with pytest.raises(UnfollowableError, match="'anyOf'"):
        OLMO.calls_grammar(Calls([Tool("a", {"anyOf": [{}]})], True, False, {}))
