"""GLM's calls: keys and values between tags, which become JSON by the tool's schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.dialects.parts import CallArguments, CallStart
from pagoda_gateway.errors import InvalidRequestError, UnfollowableError

GLM = Dialect.of("<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value} <think></think>")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"type": "object"},
    },
}
TOOLS = [Tool("look", SCHEMA), Tool("go")]


def call(name: str, *, line: str = "\n", **values: str) -> str:
    body = "".join(
        f"<arg_key>{k}</arg_key>{line}<arg_value>{v}</arg_value>{line}" for k, v in values.items()
    )
    return f"<tool_call>{name}{line}{body}</tool_call>"


def test_the_template_shows_it() -> None:
    assert GLM.name == "glm"
    assert GLM.reasoning is not None


VALUES = st.text("a\n<>/{}[]\"' é1", max_size=8)


@given(
    values=st.dictionaries(st.sampled_from(["city", "x", "y z"]), VALUES),
    days=st.integers(),
    where=st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=3),
    line=st.sampled_from(["", "\n"]),
    borders=st.lists(st.integers(0, 400), max_size=20),
)
def test_calls_come_back_as_they_were_written(
    values: dict[str, str], days: int, where: dict[str, str], line: str, borders: list[int]
) -> None:
    texts = {**values, "days": str(days), "where": json.dumps(where)}
    text = (
        f"\n<think>hm</think>\nWell.\n{call('look', line=line, **texts)}\n{call('go', line=line)}"
    )
    parts = parts_of(GLM.parser(TOOLS), cut(text, borders))
    content, thought, found = reading(parts)
    assert (content, thought) == ("Well.\n", "hm")
    assert [name for name, _ in found] == ["look", "go"]
    assert json.loads(found[0][1]) == {**values, "days": days, "where": where}
    assert found[1][1] == "{}"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (call("look", where="{'x': True}"), "", [("look", '{"where": {"x":true}}')]),
        (call("look", city=" Rome\n"), "", [("look", '{"city": " Rome\\n"}')]),
        (call("look", days="many"), "", [("look", '{"days": "many"}')]),
        ("<tool_call>is a tag", "<tool_call>is a tag", []),
        ('<tool_call>{"name": "go"}', '<tool_call>{"name": "go"}', []),
        ("<tool_call></tool_call>", "<tool_call></tool_call>", []),
        ("<tool_call>lo", "", []),
        ("<tool_call>look\n", "", [("look", "")]),
        ("<tool_call>look\n<arg_", "", [("look", "")]),
        ("<tool_call>look\n<arg_key>ci", "", [("look", "")]),
        ("<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Ro", "", [("look", '{"city": "Ro')]),
        ("<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool", "",
         [("look", '{"city": "Rome"')]),
        ("<tool_call>go\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\nhm", "hm",
         [("go", '{"a": "1"}')]),
    ],
)  # fmt: skip
def test_reading(text: str, content: str, calls: list[PlainCall]) -> None:
    for step in (1, 2, 3, 5, 1000):
        parts = parts_of(GLM.parser(TOOLS), cut(text, range(0, len(text), step)))
        assert reading(parts) == (content, "", calls)


def test_texts_go_out_as_they_arrive() -> None:
    parser = GLM.parser(TOOLS)
    assert parser.push("<tool_call>look\n<arg_key>") == [CallStart(0, "look")]
    given = [
        p.text for p in parser.push("city</arg_key>\n<arg_value>Ro") if isinstance(p, CallArguments)
    ]
    assert "".join(given) == '{"city": "Ro'
    assert parser.push('m"e</arg') == [CallArguments(0, 'm\\"e')]


def test_a_key_with_space_around_it_is_the_declared_one() -> None:
    schema = {"type": "object", "properties": {" k": {"type": "integer"}, "": {}}}
    text = call("look", **{" k": "5", " other ": "x"})
    ((_, arguments),) = reading(parts_of(GLM.parser([Tool("look", schema)]), [text]))[2]
    assert json.loads(arguments) == {" k": 5, "other": "x"}
    with pytest.raises(InvalidRequestError, match="a parameter named ''"):
        GLM.calls_grammar(Calls([Tool("look", schema)], True, False, {}))


def test_what_the_format_cannot_hold_is_refused() -> None:
    for tool in (Tool("a b"), Tool("a", {"properties": {"<": {}}})):
        with pytest.raises(InvalidRequestError, match="ends a name"):
            GLM.calls_grammar(Calls([tool], True, False, {}))
    with pytest.raises(UnfollowableError, match="'anyOf'"):
        GLM.calls_grammar(Calls([Tool("a", {"anyOf": [{}]})], True, False, {}))
