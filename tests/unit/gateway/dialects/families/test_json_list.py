"""Calls as a JSON list after a mark: Granite's, Phi's and Command R7B's."""

import pytest
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Tool

TOOLS = [Tool("look"), Tool("go")]
LOOK = '{"name": "look", "arguments": {"a": "]"}}'
GO = '{"name": "go", "arguments": {}}'
READ = [("look", '{"a": "]"}'), ("go", "{}")]
ACTIONS = (
    '[\n    {"tool_call_id": "0", "tool_name": "look", "parameters": {"a": "]"}},\n'
    '    {"tool_call_id": "1", "tool_name": "go", "parameters": {}}\n]'
)


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("granite", f"<|tool_call|>[{LOOK}, {GO}]", "", READ),
        ("granite", f"Well.<|tool_call|> [{LOOK}]\n", "Well.", READ[:1]),
        ("granite", f"<|tool_call|>{GO}", "", READ[1:]),
        ("granite", "<|tool_call|>[1]", "<|tool_call|>[1]", []),
        ("granite", "<|tool_call|>is a mark", "<|tool_call|>is a mark", []),
        ("granite", "<|tool_call|>[", "", []),
        ("granite", '<|tool_call|>[{"na', "", []),
        ("granite", '<|tool_call|>[{"name": "look", "arg', "", [("look", "")]),
        ("granite", f"<|tool_call|>[{LOOK}, {{", "", READ[:1]),
        ("phi4_mini", f"<|tool_call|>[{LOOK}, {GO}]<|/tool_call|>", "", READ),
        ("phi4_mini", f"<|tool_call|>[{LOOK}]<|/tool_call|><|tool_call|>[{GO}]<|/tool_call|>", "",
         READ),
        ("phi4_mini", f"<|tool_call|>[{GO}]<|/tool_", "", READ[1:]),
        ("phi4_mini", f"<|tool_call|>[{GO}] Done", "Done", READ[1:]),
        ("command_r7b", f"<|START_ACTION|>{ACTIONS}<|END_ACTION|>", "", READ),
        ("command_r7b", f"<|START_ACTION|>[{GO}]", f"<|START_ACTION|>[{GO}]", []),
    ],
)  # fmt: skip
def test_reading(name: str, text: str, content: str, calls: list[PlainCall]) -> None:
    for step in (1, 2, 3, 5, 1000):
        parser = Dialect.of("", name).parser(TOOLS)
        parts = parts_of(parser, cut(text, range(0, len(text), step)))
        assert reading(parts) == (content, "", calls)


def test_thoughts_come_before_actions() -> None:
    command = Dialect.of("<|START_ACTION|> <|START_THINKING|><|END_THINKING|>")
    text = f"<|START_THINKING|>plan<|END_THINKING|><|START_ACTION|>{ACTIONS}<|END_ACTION|>"
    assert reading(parts_of(command.parser(TOOLS), [text])) == ("", "plan", READ)
