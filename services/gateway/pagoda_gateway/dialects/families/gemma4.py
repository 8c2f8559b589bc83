r"""Gemma 4: `<|tool_call>call:NAME{city:<|"|>Rome<|"|>,days:[1,2]}<tool_call|>`.

Keys stand bare, texts between marks. What looks like JSON within is read as JSON, so a grammar can
hold arguments to their schemas in JSON's own words.
"""

import re
from collections.abc import Sequence

import orjson

from pagoda_gateway.dialects.call_parser import PYTHON_WORDS, MarkedCallParser
from pagoda_gateway.dialects.grammar import Calls, Tool, check_names, json_text, mark, opening_rules
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
CALL = "call:"
MAX_DEPTH = 64  # of objects and lists in arguments; what is deeper is no call any more
_NAME_END = re.compile(r"[\s{<]")
_KEY_END = re.compile(r"[:,{}\[\]<]")
_SCALAR_END = re.compile(r"[,}\]]")


class Gemma4:
    """The family."""

    name = "gemma4"
    marks = (OPEN, CLOSE, QUOTE)
    call_id_chars = None

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser()

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
        """
        check_names(calls.tools, _NAME_END, "a space, '{' and '<'")
        text = "" if calls.at_least_one else "call_text | "
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        return [
            f"calls: {text}call_block{'+' if calls.parallel else ''}",
            f"call_block: call_open ({names}) {mark(CLOSE, calls.token_ids)}",
            *opening_rules(OPEN, calls),
            *(
                f"call_{i}: {json_text(CALL + tool.name)} %json {json_text(tool.arguments)}"
                for i, tool in enumerate(calls.tools)
            ),
        ]


class _Parser(MarkedCallParser):
    _marks = (OPEN,)

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark, (yield from self._source.whitespace())]
        if not (yield from self._source.mark(CALL, cut=True)):
            self._content("".join(held))
            return False
        held.append(CALL)
        name = yield from self._source.word(_NAME_END, held)
        following = yield from self._source.peek()
        if not name or following != "{":
            if following:
                self._content("".join(held))
            return False
        self._start_call(name)
        if not (yield from self._value(0)):
            return False
        yield from self._source.whitespace()
        yield from self._source.mark(CLOSE, cut=True)
        return True

    def _value(self, depth: int) -> Reading[bool]:
        """Read a value, and give it as JSON; False: it ends too early, or is none."""
        yield from self._source.whitespace()
        match (yield from self._source.peek()):
            case "{" if depth < MAX_DEPTH:
                return (yield from self._members("{", "}", depth))
            case "[" if depth < MAX_DEPTH:
                return (yield from self._members("[", "]", depth))
            case "" | "{" | "[" | "]" | "}" | ",":
                return False
        if (yield from self._quoted()):
            return True
        text = (yield from self._source.word(_SCALAR_END, [])).strip()
        if not (yield from self._source.peek()):
            return False
        self._arguments(_scalar(PYTHON_WORDS.get(text, text)))
        return True

    def _members(self, opening: str, closing: str, depth: int) -> Reading[bool]:
        """Read the members of an object or of a list."""
        yield from self._source.mark(opening)
        self._arguments(opening)
        is_first = True
        while True:
            yield from self._source.whitespace()
            if (yield from self._source.mark(closing)):
                self._arguments(closing)
                return True
            if not is_first:
                if not (yield from self._source.mark(",")):
                    return False
                self._arguments(", ")
            if opening == "{" and not (yield from self._key()):
                return False
            if not (yield from self._value(depth + 1)):
                return False
            is_first = False

    def _key(self) -> Reading[bool]:
        yield from self._source.whitespace()
        if not (yield from self._quoted()):
            key = (yield from self._source.word(_KEY_END, [])).strip()
            if not key or (yield from self._source.peek()) != ":":
                return False
            self._arguments(json_text(key))
        yield from self._source.whitespace()
        if not (yield from self._source.mark(":")):
            return False
        self._arguments(": ")
        return True

    def _quoted(self) -> Reading[bool]:
        """Read a text between marks, or in JSON's quotes; False: there is none.

        One that the output's end cuts is given as far as it goes.
        """
        if (yield from self._source.peek()) == '"':
            yield from self._source.json_value(self._arguments)
            return True
        if not (yield from self._source.mark(QUOTE)):
            return False
        self._arguments('"')
        if (yield from self._source.until(QUOTE, self._escaped)):
            self._arguments('"')
        return True

    def _escaped(self, text: str) -> None:
        self._arguments(json_text(text)[1:-1])


def _scalar(text: str) -> str:
    """Return a number, `true`, `false` or `null` as it is; what is none of them is a text."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return json_text(text)
    return text
