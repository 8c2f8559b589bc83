r"""Hermes, Qwen 2.5 and 3: `<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`."""

from collections.abc import Sequence

from pagoda_gateway.dialects.call_parser import MarkedCallParser
from pagoda_gateway.dialects.grammar import Calls, Tool, mark, object_rules, opening_rules
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """The family."""

    name = "hermes"
    marks = (OPEN, CLOSE)
    call_id_chars = None

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser()

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`."""
        more = r' ("\n" call_block)*' if calls.parallel else ""
        text = "" if calls.at_least_one else "call_text | "
        return [
            f"calls: {text}call_block{more}",
            rf'call_block: call_open "\n" call_object "\n" {mark(CLOSE, calls.token_ids)}',
            *opening_rules(OPEN, calls),
            *object_rules(calls.tools, "arguments"),
        ]


class _Parser(MarkedCallParser):
    _marks = (OPEN,)

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark, (yield from self._source.whitespace())]
        while (yield from self._call(held)):
            held = [(yield from self._source.whitespace())]
            if (yield from self._source.mark(CLOSE, cut=True)):
                return True
            if (yield from self._source.peek()) != "{":  # a model that is cut, or forgets the mark
                return True
        return False
