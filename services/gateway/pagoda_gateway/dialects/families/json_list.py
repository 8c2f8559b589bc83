r"""Marks around a JSON list of calls: Granite 3, Phi 4 mini, Llama Nemotron and Command R7B.

Granite has one mark, `<|tool_call|>[{"name": ..., "arguments": {...}}]`, Phi another one after it,
`<|/tool_call|>`, Nemotron `<TOOLCALL>` and `</TOOLCALL>`. Command R7B numbers calls, each on a line
of its own:
`<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": ..., "parameters": {...}}\n]`
`<|END_ACTION|>`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_gateway.dialects.call_parser import MarkedCallParser
from pagoda_gateway.dialects.grammar import (
    Calls,
    Tool,
    json_text,
    mark,
    object_rules,
    opening_rules,
)
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

CALL, CALL_END = "<|tool_call|>", "<|/tool_call|>"
ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
TOOLCALL, TOOLCALL_END = "<TOOLCALL>", "</TOOLCALL>"
TOOLS, TOOLS_END = "<|tool|>", "<|/tool|>"
"""Of the tools that Phi is offered; its template shows no call."""

_NUMBERED = " ".join([json_text('{"tool_call_id": "'), "/[0-9]{1,4}/", json_text('", ')])


@dataclass(frozen=True)
class JsonList:
    """A family.

    Attributes:
        name: its own.
        marks: that of the beginning, and, where there is one, that of the end.
        name_key, arguments_key: of a call.
        head: words of a grammar for what a call begins with.
        line: white space before each call and, without its indent, before the list's end.
    """

    name: str
    marks: tuple[str, ...]
    name_key: str = "name"
    arguments_key: str = "arguments"
    head: str = '"{"'
    line: str = ""
    call_id_chars: int | None = None

    @classmethod
    def granite(cls) -> "JsonList":
        """Return Granite 3."""
        return cls("granite", (CALL,))

    @classmethod
    def phi4_mini(cls) -> "JsonList":
        """Return Phi 4 mini."""
        return cls("phi4_mini", (CALL, CALL_END))

    @classmethod
    def nemotron(cls) -> "JsonList":
        """Return Llama Nemotron."""
        return cls("nemotron", (TOOLCALL, TOOLCALL_END))

    @classmethod
    def command_r7b(cls) -> "JsonList":
        """Return Command R7B, and Command A."""
        return cls(
            "command_r7b",
            (ACTION, ACTION_END),
            name_key="tool_name",
            arguments_key="parameters",
            head=_NUMBERED,
            line="\n    ",
        )

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser(self.marks, self.name_key)

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`."""
        text = "" if calls.at_least_one else "call_text | "
        end = " ".join(mark(text, calls.token_ids) for text in self.marks[1:])
        comma = json_text("," + (self.line or " "))
        more = f" ({comma} call_object)*" if calls.parallel else ""
        begin, close = json_text("[" + self.line), json_text(self.line.rstrip(" ") + "]")
        return [
            f"calls: {text}call_open {begin} call_object{more} {close} {end}",
            *opening_rules(self.marks[0], calls),
            *object_rules(calls.tools, self.arguments_key, self.head, self.name_key),
        ]


class _Parser(MarkedCallParser):
    def __init__(self, marks: tuple[str, ...], name_key: str) -> None:
        self._marks, self._ends = marks[:1], marks[1:]
        self._name_key = name_key
        super().__init__()

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark, (yield from self._source.whitespace())]
        if (yield from self._source.mark("[")):
            is_whole = yield from self._call_list([*held, "["])
        else:
            is_whole = yield from self._call(held)
        if is_whole:
            yield from self._source.whitespace()
            for end in self._ends:
                yield from self._source.mark(end, cut=True)
        return is_whole
