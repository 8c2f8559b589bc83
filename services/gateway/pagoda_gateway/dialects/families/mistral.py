"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, newer: `[TOOL_CALLS]name[ARGS]{...}`.

A parser reads both; which of them a model writes, its chat template says.
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

OPEN, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAME_END = re.compile(r"[\s\[{]")


class Mistral:
    """The family."""

    name = "mistral"
    marks = (OPEN, ARGS)
    call_id_chars = 9

    def __init__(self, *, named: bool) -> None:
        """`named`: the model writes a mark and a name before each call, no list."""
        self._named = named

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
    _mark = OPEN

    def _block(self) -> Reading[bool]:
        held = [OPEN, (yield from self._source.whitespace())]
        if (yield from self._source.mark("[")):
            return (yield from self._list([*held, "["]))
        return (yield from self._named_call(held))

    def _list(self, held: list[str]) -> Reading[bool]:
        while (yield from self._call(held)):
            yield from self._source.whitespace()
            if not (yield from self._source.mark(",")):
                yield from self._source.mark("]")
                return True
            held = [","]
        return False

    def _named_call(self, held: list[str]) -> Reading[bool]:
        start = len(held)
        yield from self._source.while_not(_NAME_END, held.append)
        name = "".join(held[start:])
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
        elif name and ARGS in held:
            self._start_call(name)
        return False
