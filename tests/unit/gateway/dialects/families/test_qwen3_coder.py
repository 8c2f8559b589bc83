"""Parameters one by one: what a model writes becomes JSON by the tool's schema, in any pieces."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from support.output_parts import PlainCall, cut, parts_of, reading
from support.tiny_tokenizer import EOS_ID, byte_level_tokenizer

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.dialects.parts import CallArguments, CallStart
from pagoda_gateway.errors import UnfollowableError
from pagoda_gateway.text.grammars import arguments_schema

QWEN = Dialect.of("<tool_call> <function= <parameter=")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Its name."},
        "days": {"type": "integer"},
        "share": {"type": ["number", "null"]},
        "sunny": {"type": "boolean"},
        "mode": {"enum": ["fast", 3]},
        "where": {"$ref": "#/$defs/place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "short": {"type": "string", "maxLength": 3},
        "any": {},
    },
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
TOOLS = [Tool("look", SCHEMA), Tool("go")]


def call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def read(text: str, tools: list[Tool] = TOOLS) -> tuple[str, list[PlainCall]]:
    content, _, calls = reading(parts_of(QWEN.parser(tools), [text]))
    return content, calls


def test_the_template_shows_it() -> None:
    assert QWEN.name == "qwen3_coder"
    assert Dialect.of("<tool_call><function=").name == "hermes"


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("city", "Rome", "Rome"),
        ("city", "3", "3"),
        ("city", "true", "true"),
        ("city", ' "quoted" ', ' "quoted" '),
        ("city", 'a\n\tb "c" \\ \u00e9 </p>', 'a\n\tb "c" \\ \u00e9 </p>'),
        ("city", "", ""),
        ("city", "line\n", "line\n"),
        ("days", "3", 3),
        ("days", " 3 ", 3),
        ("days", "three", "three"),
        ("share", "0.5", 0.5),
        ("share", "null", None),
        ("share", "None", None),
        ("sunny", "True", True),
        ("sunny", "false", False),
        ("mode", "fast", "fast"),
        ("mode", '"fast"', "fast"),
        ("mode", "3", 3),
        ("where", '{"x": 1.5, "s": "</parameter>"}', {"x": 1.5, "s": "</parameter>"}),
        ("note", "null", None),
        ("note", "3 apples", "3 apples"),
        ("note", "3", "3"),
        ("short", "abc", "abc"),
        ("short", '"ab"', "ab"),
        ("any", "text", "text"),
        ("unknown", "5", "5"),
    ],
)
def test_a_value_becomes_what_its_schema_asks_for(key: str, written: str, value: object) -> None:
    content, calls = read(call("look", **{key: written}))
    assert content == ""
    ((name, arguments),) = calls
    assert (name, json.loads(arguments)) == ("look", {key: value})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (call("go"), "", [("go", "{}")]),
        ("Well.\n" + call("go") + "\n" + call("go", a="1"), "Well.\n",
         [("go", "{}"), ("go", '{"a": "1"}')]),
        ("<tool_call><function=go><parameter=a>1</parameter></function></tool_call>", "",
         [("go", '{"a": "1"}')]),
        ("<tool_call>\n<function=go>\n</function>", "", [("go", "{}")]),
        ("<tool_call>\nhello", "<tool_call>\nhello", []),
        ("<tool_call>\n<function=>\n", "<tool_call>\n<function=>\n", []),
        ("<tool_call>\n<function=go\n>", "<tool_call>\n<function=go\n>", []),
        ("<tool_call>\n<function=g", "", []),
        ("<tool_call>\n<function=go>\n<parameter=a>\nRo", "", [("go", '{"a": "Ro')]),
        ("<tool_call>\n<function=go>\nhm </function>", "hm </function>", [("go", "{}")]),
        ("<function=go>", "<function=go>", []),
    ],
)  # fmt: skip
def test_reading(text: str, content: str, calls: list[PlainCall]) -> None:
    assert read(text) == (content, calls)


def test_texts_go_out_as_they_arrive() -> None:
    parser = QWEN.parser(TOOLS)
    assert parser.push("<tool_call>\n<function=look>\n<param") == [CallStart(0, "look")]
    text = "".join(p.text for p in parser.push("eter=city>\nRo") if isinstance(p, CallArguments))
    assert text == '{"city": "Ro'
    assert parser.push('m"e\n') == [CallArguments(0, 'm\\"e')]
    rest = "".join(
        part.text
        for piece in ("next</para", "meter>\n</function>")
        for part in parser.push(piece)
        if isinstance(part, CallArguments)
    )
    assert rest == '\\nnext"}'


PIECES = ["a", "\n", "<", ">", '"', "\\", "{", "}", "</", "parameter", "é", "1", " ", "null"]
VALUES = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(
    values=st.dictionaries(st.sampled_from(["city", "days", "note", "where", "x"]), VALUES),
    borders=st.lists(st.integers(0, 300), max_size=20),
)
def test_any_value_is_json_whatever_the_cuts(values: dict[str, str], borders: list[int]) -> None:
    values = {k: v for k, v in values.items() if "</parameter>" not in v}
    text = call("look", **values)
    whole = parts_of(QWEN.parser(TOOLS), [text])
    assert parts_of(QWEN.parser(TOOLS), cut(text, borders)) == whole
    if "where" in values or "days" in values or "note" in values:
        return  # a bracket or a quote that is open may hold the tag
    _, _, ((_, arguments),) = reading(whole)
    assert json.loads(arguments) == values


@pytest.mark.parametrize(
    ("schema", "text", "is_taken"),
    [
        (None, "<parameter=a>\nx\n</parameter>\n<parameter=b>\n\n</parameter>\n", True),
        ({"properties": {}, "additionalProperties": False}, "", True),
        ({"properties": {}, "additionalProperties": False}, "<parameter=a>", False),
        ({"additionalProperties": {"type": "integer"}}, "<parameter=a>\n5\n</parameter>\n", True),
        ({"additionalProperties": {"type": "integer"}}, "<parameter=a>\nx", False),
        ({"properties": {"a": True, "b": False}}, "<parameter=a>\nx\n</parameter>\n", True),
        ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": True},
         "<parameter=b>\n5\n</parameter>\n", True),
        ({"properties": {"a": {}}, "required": ["a"]}, "</function>", False),
    ],
)  # fmt: skip
def test_grammars_of_odd_schemas(schema: dict[str, Any] | None, text: str, is_taken: bool) -> None:
    tool = Tool("go", arguments_schema(schema))
    rules = QWEN.calls_grammar(Calls([tool], True, False, {}))
    table = LLTokenizer(byte_level_tokenizer().to_str(), eos_token=EOS_ID)
    matcher = LLMatcher(table, f"start: calls\n{rules}")
    assert not matcher.is_error(), matcher.get_error()
    written = f"<tool_call>\n<function=go>\n{text}"
    ids = table.tokenize_str(written + "</function>\n</tool_call>" * is_taken)
    assert (matcher.try_consume_tokens(ids) == len(ids)) is is_taken
    if is_taken:
        assert matcher.is_accepting()
        _, ((_, arguments),) = read(written + "</function>", [Tool("go", schema or {})])
        jsonschema.validate(json.loads(arguments), schema or {})


def test_a_schema_that_is_no_list_of_parameters_is_refused() -> None:
    tool = Tool("go", {"type": "object", "anyOf": [{"required": ["a"]}]})
    with pytest.raises(UnfollowableError, match=r"'go'.*'properties'.*'anyOf'") as caught:
        QWEN.calls_grammar(Calls([TOOLS[1], tool], True, False, {}))
    assert (caught.value.param, caught.value.at_fault) == ("tools", [1])
