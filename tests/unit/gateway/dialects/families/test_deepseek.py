"""DeepSeek's calls, with a block of code and without one."""

# ruff: noqa: RUF001  (its marks)

import pytest
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.dialects.parts import CallArguments, CallStart

DEEPSEEK = Dialect.of("<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜> </think>")
FENCE = '{"a": "```"}'
ONE = '{"a": 1}'
TOOLS = [Tool("look"), Tool("go"), Tool("function")]
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def plain(name: str, arguments: str = "{}") -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def fenced(name: str, arguments: str = "{}") -> str:
    return plain("function", f"{name}\n```json\n{arguments}\n```")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"Well.{CALLS}{plain('look', ONE)}{plain('go')}{CALLS_END}", "Well.",
         [("look", '{"a": 1}'), ("go", "{}")]),
        (f"{CALLS}{fenced('look', FENCE)}\n{fenced('go')}{CALLS_END}", "",
         [("look", '{"a": "```"}'), ("go", "{}")]),
        (CALLS + plain("function"), "", [("function", "{}")]),
        (CALLS + fenced("function"), "", [("function", "{}")]),
        (CALLS + plain("function", "look\n{}"), "", [("look", "{}")]),
        (CALLS + plain("function", "look\n```\n{}\n```"), "", [("look", "{}")]),
        (plain("look") + "Done", "Done", [("look", "{}")]),
        (f"{CALLS}{CALLS_END}", f"{CALLS}{CALLS_END}", []),
        (f"{CALLS}hm", f"{CALLS}hm", []),
        (CALLS + plain(""), CALLS + plain(""), []),
        (CALLS + plain("look", "3 "), CALLS + plain("look", "3 "), []),
        (CALLS[:7], CALLS[:7], []),
        (CALLS, "", []),
        (f"{CALLS}<｜tool▁call▁begin｜>lo", "", []),
        (f"{CALLS}<｜tool▁call▁begin｜>look<｜tool▁s", "", []),
        (f"{CALLS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>lo", "", []),
        (f"{CALLS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n``", "", [("look", "")]),
        (CALLS + '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"a', "", [("look", '{"a')]),
        (f"{CALLS}{fenced('look')[:-14]}", "", [("look", "{}")]),
        (f"{CALLS}{plain('look')}<｜tool▁call▁begin｜>g", "", [("look", "{}")]),
        (f"{CALLS}{plain('look')}<｜tool▁calls▁e", "", [("look", "{}")]),
    ],
)  # fmt: skip
def test_reading(text: str, content: str, calls: list[PlainCall]) -> None:
    for step in (1, 2, 3, 5, 1000):
        parts = parts_of(DEEPSEEK.parser(TOOLS), cut(text, range(0, len(text), step)))
        assert reading(parts) == (content, "", calls)


def test_thoughts_come_before_calls() -> None:
    text = f"Okay\n</think>\n\n{CALLS}{fenced('look')}{CALLS_END}"
    parts = parts_of(DEEPSEEK.parser(TOOLS, prompt="<｜Assistant｜><think>\n"), [text])
    assert reading(parts) == ("", "Okay\n", [("look", "{}")])


def test_arguments_go_out_as_they_arrive() -> None:
    parser = DEEPSEEK.parser(TOOLS)
    assert parser.push(f"{CALLS}<｜tool▁call▁begin｜>look<｜tool▁sep｜>") == []
    assert parser.push('{"a') == [CallStart(0, "look"), CallArguments(0, '{"a')]
