"""Parameters one by one: what a model writes becomes JSON by the tool's schema, in any pieces."""

import json
import time
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
        "list": {"type": ["array", "null"]},
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
        ("where", "{'x': True, 'y': [None, \"it's\"], 1: (2, 'a\\n')}",
         {"x": True, "y": [None, "it's"], "1": [2, "a\n"]}),
        ("list", "['a', -1.5]", ["a", -1.5]),
        ("where", "{'x': {1, 2}}", "{'x': {1, 2}}"),
        ("where", "{'x': b'y'}", "{'x': b'y'}"),
        ("where", "{'x': open}", "{'x': open}"),
        ("where", r"{'x': '\d'}", r"{'x': '\d'}"),
        ("where", r"{'x': '\ud800'}", r"{'x': '\ud800'}"),
        ("where", "'text'", "'text'"),
        ("where", "{'x': " + "9" * 5000 + "}", "{'x': " + "9" * 5000 + "}"),
        ("where", "{'x': '" + "a" * 20_000 + "'}", "{'x': '" + "a" * 20_000 + "'}"),
        ("list", "[" * 300 + "'x'" + "]" * 300, "[" * 300 + "'x'" + "]" * 300),
        ("share", "{'x': 1}", "{'x': 1}"),
        ("note", "null", None),
        ("note", "3 apples", "3 apples"),
        ("note", "3", "3"),
        ("short", "abc", "abc"),
        ("short", '"ab"', "ab"),
        ("any", "text", "text"),
        ("unknown", "5", "5"),
    ],
)  # fmt: skip
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
        ("<tool_call>", "", []),
        ("<tool_call>\n<func", "", []),
        (call("go") + "\n<tool_c", "", [("go", "{}")]),
        ("<tool_call>\n<function=go>\n</func", "", [("go", "")]),
        # The first tag is missing.
        ("<function=go>", "", [("go", "")]),
        ("<function=go>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", "",
         [("go", '{"a": "1"}')]),
        ("Well.\n<function=go>\n</function>\n<function=look>\n</function>\n" + call("go"),
         "Well.\n", [("go", "{}"), ("look", "{}"), ("go", "{}")]),
        ("Write <function=NAME>, or <function=", "Write <function=NAME>, or ", []),
        ("Write <function=g", "Write ", []),
        ("Write <function=x", "Write <function=x", []),
        ("Write <function=>", "Write <function=>", []),
        # A value's last tag is missing.
        ("<tool_call>\n<function=look>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n"
         "</function>\n</tool_call>", "", [("look", '{"city": "Paris", "days": 3}')]),
        ("<tool_call>\n<function=look>\n<parameter=days>3<parameter=city>Paris</function>", "",
         [("look", '{"days": 3, "city": "Paris"}')]),
        ("<tool_call>\n<function=go>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>"
         + call("go"), "", [("go", '{"a": "1", "b": "2"}'), ("go", "{}")]),
        ("<tool_call>\n<function=go>\n<parameter=a>\n1\n</function>\n<function=go>\n</function>",
         "", [("go", '{"a": "1"}'), ("go", "{}")]),
        # Such tags in a text.
        (call("look", city="a\n</function>\nb <parameter=x> <parameter=city> <parameter=\n"), "",
         [("look", json.dumps({"city": "a\n</function>\nb <parameter=x> <parameter=city> "
                               "<parameter=\n"}))]),
        ("<tool_call>\n<function=look>\n<parameter=city>\na</function> b", "",
         [("look", '{"city": "a</function> b')]),
    ],
)  # fmt: skip
def test_reading(text: str, content: str, calls: list[PlainCall]) -> None:
    assert read(text) == (content, calls)
    for step in (1, 2, 3, 5):
        parts = parts_of(QWEN.parser(TOOLS), cut(text, range(0, len(text), step)))
        assert reading(parts) == (content, "", calls)


def test_seed_oss_has_tags_of_its_own() -> None:
    seed = Dialect.of("<seed:tool_call> <function= <parameter= <seed:think></seed:think>")
    own = call("look", city="Rome", days="3").replace("tool_call>", "seed:tool_call>")
    text = f"<seed:think>hm</seed:think>\n{own}"
    assert seed.name == "seed_oss"
    for step in (1, 3, len(text)):
        parts = parts_of(seed.parser(TOOLS), cut(text, range(0, len(text), step)))
        assert reading(parts) == ("", "hm", [("look", '{"city": "Rome", "days": 3}')])


def test_tags_in_a_text_take_time_by_their_number() -> None:
    def seconds(size: int) -> float:
        text = call("look", city="<parameter=x></function>. " * size)
        begun = time.process_time()
        read(text)
        return time.process_time() - begun

    short = min(seconds(2000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(2)) < 8 * 4 * max(short, 1e-3)


def test_values_without_tags_take_time_by_their_number() -> None:
    def seconds(num: int) -> float:
        text = f"<function=go>{''.join(f'<parameter=k{i}>x' for i in range(num))}</function>"
        started = time.process_time()
        ((_, arguments),) = read(text)[1]
        assert len(json.loads(arguments)) == num
        return time.process_time() - started

    short = min(seconds(4_000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(2)) < 12 * short


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 500}}},
        {"$defs": 5},
        {"$defs": []},
        {"$defs": {"a": {"anyOf": 5, "enum": 5, "type": {}}}},
        {"$defs": {"a": {"oneOf": [{"type": ["string", 5]}, 5], "const": "x"}}},
    ],
)
def test_schemas_that_nobody_has_checked_are_read_in_time(schema: dict[str, Any]) -> None:
    tool = Tool("look", {**schema, "properties": {"k": {"$ref": "#/$defs/a"}}})
    started = time.perf_counter()
    ((_, arguments),) = read(call("look", k="5"), [tool])[1]
    assert json.loads(arguments) in ({"k": 5}, {"k": "5"})
    assert time.perf_counter() - started < 1


def test_who_says_odd_properties_has_any() -> None:
    text = "<tool_call>\n<function=go>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>"
    odd: tuple[Any, ...] = (True, {}, [])
    for properties in odd:
        tools = [Tool("go", {"properties": properties})]
        assert read(text, tools) == ("", [("go", '{"a": "1", "b": "2"}')])


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
