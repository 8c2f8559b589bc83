"""Kimi's calls, whose ids name the functions."""

import pytest
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.dialects.parts import CallArguments, CallStart

KIMI = Dialect.of("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>")
ONE = '{"a": 1}'
TOOLS = [Tool("look"), Tool("go")]
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def call(call_id: str, arguments: str = "{}") -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"Well.{SECTION}{call('functions.look:0', ONE)}{call('functions.go:1')}"
         f"{SECTION_END}", "Well.", [("look", '{"a": 1}'), ("go", "{}")]),
        (f"{SECTION}\n{call(' functions.look:0 ')}\n{SECTION_END}\n", "", [("look", "{}")]),
        (f"{SECTION}{call('look:12')}{call('go')}{call('functions.go')}", "",
         [("look", "{}"), ("go", "{}"), ("go", "{}")]),
        (SECTION + call("functions.a:3:4"), "", [("a:3", "{}")]),
        (call("functions.look:0") + "Done", "Done", [("look", "{}")]),
        (f"{SECTION}{SECTION_END}", f"{SECTION}{SECTION_END}", []),
        (f"{SECTION}hm", f"{SECTION}hm", []),
        (SECTION + call("", "{}"), SECTION + call("", "{}"), []),
        (SECTION + call("look", "3"), SECTION + call("look", "3"), []),
        (SECTION[:9], SECTION[:9], []),
        (SECTION, "", []),
        (f"{SECTION}<|tool_call_begin|>functions.lo", "", []),
        (f"{SECTION}<|tool_call_begin|>functions.look:0<|tool_call_arg", "", [("look", "")]),
        (f"{SECTION}{call('functions.look:0')}<|tool_call_begin|>func", "", [("look", "{}")]),
        (f"{SECTION}{call('functions.look:0')}<|tool_calls_sec", "", [("look", "{}")]),
    ],
)  # fmt: skip
def test_reading(text: str, content: str, calls: list[PlainCall]) -> None:
    for step in (1, 2, 3, 5, 1000):
        parts = parts_of(KIMI.parser(TOOLS), cut(text, range(0, len(text), step)))
        assert reading(parts) == (content, "", calls)


def test_arguments_go_out_as_they_arrive() -> None:
    parser = KIMI.parser(TOOLS)
    assert parser.push(f"{SECTION}<|tool_call_begin|>functions.look:0") == []
    assert parser.push('<|tool_call_argument_begin|>{"a') == [
        CallStart(0, "look"),
        CallArguments(0, '{"a'),
    ]
