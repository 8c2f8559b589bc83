"""Llama 3.1 and later: an output that is `{"name": ..., "parameters": {...}}`, or several of them.

Between two is `; `, or the end of a line.
Nothing but the name of a known tool tells a call from an answer in JSON.
"""

from collections.abc import Sequence

from pagoda_gateway.dialects.call_parser import CallParser
from pagoda_gateway.dialects.grammar import Calls, Tool, object_rules
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

TAG = "<|python_tag|>"


class Llama3:
    """The family."""

    name = "llama3"
    marks = (TAG,)
    call_id_chars = None

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser(frozenset(tool.name for tool in tools))

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`."""
        more = r' (("; " | "\n") call_object)*' if calls.parallel else ""
        if calls.at_least_one:
            return [f"calls: call_object{more}", *object_rules(calls.tools, "parameters")]
        return [
            f"calls: CALL_TEXT? | call_object{more}",
            r"CALL_TEXT: /\s*[^\s{](?s:.*)/",
            *object_rules(calls.tools, "parameters"),
        ]


class _Parser(CallParser):
    def __init__(self, known: frozenset[str]) -> None:
        super().__init__()
        self._known = known

    def _read(self) -> Reading[None]:
        held: list[str] = []
        while (yield from self._read_call(held)):
            held = [(yield from self._source.whitespace())]
            if (yield from self._source.mark(";")):
                held.append(";")
            elif (yield from self._source.peek()) != "{":
                break
        if not self.has_calls or (yield from self._source.peek()):
            self._content("".join(held))
        yield from self._source.rest(self._content)

    def _read_call(self, held: list[str]) -> Reading[bool]:
        """Read a call; False: there is none, and `held` is what was read of it."""
        held.append((yield from self._source.whitespace()))
        tagged = yield from self._source.mark(TAG)
        if tagged:
            held += [TAG, (yield from self._source.whitespace())]
        if (yield from self._source.peek()) != "{":
            return False
        announced = tagged or self.has_calls
        whole = yield from self._call(held, known=self._known, announced=announced)
        if not whole:
            held.clear()
        return whole
