"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, newer: `[TOOL_CALLS]name[ARGS]{...}`.

Small 3.2 writes an id between: `[TOOL_CALLS]name[CALL_ID]abcdef123[ARGS]{...}`. A parser reads all
three; which of them a model writes, its chat template says.
"""

import re
from collections.abc import Sequence

from pagoda_gateway.dialects.call_parser import MarkedCallParser
from pagoda_gateway.dialects.grammar import (
    Calls,
    Tool,
    check_names,
    json_text,
    mark,
    object_rules,
    opening_rules,
)
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

OPEN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NUM_ID_CHARS = 9
_NAME_END = re.compile(r"[\s\[{]")


class Mistral:
    """The family."""

    name = "mistral"
    marks = (OPEN, CALL_ID, ARGS)
    call_id_chars = _NUM_ID_CHARS

    def __init__(self, *, named: bool, has_ids: bool = False) -> None:
        """Take what the model writes.

        Args:
            named: a mark and a name before each call, no list.
            has_ids: an id after each name.
        """
        self._named = named
        self._has_ids = has_ids

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser()

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
        """
        text = "" if calls.at_least_one else "call_text | "
        opening = opening_rules(OPEN, calls)
        if not self._named:
            more = ' (", " call_object)*' if calls.parallel else ""
            return [
                f'calls: {text}call_open " "? "[" call_object{more} "]"',
                *opening,
                *object_rules(calls.tools, "arguments"),
            ]
        check_names(calls.tools, _NAME_END, "a space, '[' and '{'")
        args = mark(ARGS, calls.token_ids)
        if self._has_ids:
            call_id = mark(CALL_ID, calls.token_ids)
            args = f"{call_id} /[A-Za-z0-9]{{{_NUM_ID_CHARS}}}/ {args}"
        alternatives = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        return [
            f"calls: {text}call_named{'+' if calls.parallel else ''}",
            f"call_named: call_open ({alternatives})",
            *opening,
            *(
                f"call_{i}: {json_text(tool.name)} {args} %json {json_text(tool.arguments)}"
                for i, tool in enumerate(calls.tools)
            ),
        ]


class _Parser(MarkedCallParser):
    _marks = (OPEN,)

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark, (yield from self._source.whitespace())]
        if (yield from self._source.mark("[")):
            return (yield from self._call_list([*held, "["]))
        return (yield from self._named_call(held))

    def _named_call(self, held: list[str]) -> Reading[bool]:
        name = yield from self._source.word(_NAME_END, held)
        held.append((yield from self._source.whitespace()))
        if (yield from self._source.mark(CALL_ID, cut=True)):  # clients get an id of the gateway's
            held += [CALL_ID, (yield from self._source.whitespace())]
            yield from self._source.while_not(_NAME_END, held.append)
            held.append((yield from self._source.whitespace()))
        if (yield from self._source.mark(ARGS, cut=True)):
            held += [ARGS, (yield from self._source.whitespace())]
        following = yield from self._source.peek()
        if following == "{" and name:
            self._start_call(name)
            yield from self._source.json_value(self._arguments)
            return True
        if following:
            self._content("".join(held))
        elif name and (ARGS in held or CALL_ID in held):
            self._start_call(name)
        return False
