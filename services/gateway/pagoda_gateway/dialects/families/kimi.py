"""Kimi K2: calls in a section, each with an id that names the function and counts.

`<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}`
`<|tool_call_end|><|tool_calls_section_end|>`.
"""

import re
from collections.abc import Sequence

from pagoda_gateway.dialects.call_parser import SectionCallParser
from pagoda_gateway.dialects.grammar import Calls, Tool, check_names, json_text, mark, opening_rules
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_ID_END = re.compile(r"[\s<{]")
_NAME = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


class Kimi:
    """The family."""

    name = "kimi"
    marks = (SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END)
    call_id_chars = None

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser()

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
        """
        check_names(calls.tools, _ID_END, "a space, '<' and '{'")
        call, arguments, end, section_end = (
            mark(text, calls.token_ids) for text in (CALL, ARGUMENTS, CALL_END, SECTION_END)
        )
        text = "" if calls.at_least_one else "call_text | "
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        return [
            f"calls: {text}call_open call_block{'+' if calls.parallel else ''} {section_end}",
            f"call_block: {call} ({names}) {end}",
            *opening_rules(SECTION, calls),
            *(
                f"call_{i}: {json_text(f'functions.{tool.name}:')} /[0-9]{{1,4}}/ {arguments} "
                f"%json {json_text(tool.arguments)}"
                for i, tool in enumerate(calls.tools)
            ),
        ]


class _Parser(SectionCallParser):
    _marks = (SECTION, CALL)
    _section_end = SECTION_END

    def _one_call(self, held: list[str]) -> Reading[bool]:
        name = _NAME.fullmatch((yield from self._source.word(_ID_END, held)))
        held.append((yield from self._source.whitespace()))
        announced = yield from self._source.mark(ARGUMENTS, cut=True)
        if announced:
            held += [ARGUMENTS, (yield from self._source.whitespace())]
        following = yield from self._source.peek()
        if name and following == "{":
            self._start_call(name[1])
            if not (yield from self._source.json_value(self._arguments)):
                return False
            yield from self._source.whitespace()
            yield from self._source.mark(CALL_END, cut=True)
            return True
        if following:
            self._content("".join(held))
        elif name and announced:
            self._start_call(name[1])
        return False
