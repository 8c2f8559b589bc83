r"""Olmo 3: lines of Python's calls with names of arguments, whose values are JSON.

`<function_calls>NAME(KEY=VALUE, KEY=VALUE)\nNAME()</function_calls>`. Models write Python's words
and quotes, too, and are understood.
"""

import re
from collections.abc import Sequence

from pagoda_gateway.dialects.call_parser import PYTHON_WORDS, MarkedCallParser
from pagoda_gateway.dialects.grammar import (
    Calls,
    Tool,
    check_names,
    json_text,
    mark,
    opening_rules,
    unwritable,
)
from pagoda_gateway.dialects.parameters import (
    KEY_RULE,
    as_json,
    check_schemas,
    parameters_of,
    value_schema,
)
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

OPEN, CLOSE = "<function_calls>", "</function_calls>"
TOOLS = "<functions>"
_WORD_END = re.compile(r"[^\w.-]")
_SIGNS = "anything but letters, digits, '_', '.' and '-'"
_SCALAR_END = re.compile(r"[,)\s]")
_IN_QUOTES = re.compile(r"['\\]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class Olmo3:
    """The family."""

    name = "olmo3"
    marks = (OPEN, CLOSE)
    call_id_chars = None

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser()

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
            UnfollowableError: schemas that it cannot hold, by their indices.
        """
        check_names(calls.tools, _WORD_END, _SIGNS)
        check_schemas(calls.tools)
        text = "" if calls.at_least_one else "call_text | "
        more = r' ("\n" call_one)*' if calls.parallel else ""
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        return [
            f"calls: {text}call_open call_one{more} {mark(CLOSE, calls.token_ids)}",
            f'call_one: ({names}) ")"',
            *opening_rules(OPEN, calls),
            *(rule for i, tool in enumerate(calls.tools) for rule in _function_rules(i, tool)),
            KEY_RULE,
        ]


def _function_rules(index: int, tool: Tool) -> list[str]:
    """Return `call_` and the index, up to its bracket: arguments in their order, as JSON."""
    name, head = f"call_{index}", json_text(f"{tool.name}(")
    parameters = parameters_of(tool)
    if parameters is None:
        words = json_text(value_schema(tool.arguments.get("additionalProperties"), tool.arguments))
        one = f'CALL_KEY "=" %json {words}'
        return [f'{name}: {head} ({one} (", " {one})*)?']
    last = len(parameters)
    # What comes once there is an argument before it, and while there is none.
    rules = [f"{name}: {head} {name}_0", f'{name}_{last}: ""', f'{name}_more_{last}: ""']
    for number, (key, schema, is_required) in enumerate(parameters):
        value = value_schema(schema, tool.arguments)
        if _WORD_END.search(key) or not key:
            raise unwritable("a function with a parameter", key, _SIGNS)
        written, after = f"{name}_is_{number}", number + 1
        left_out = "" if is_required else f" | {name}_{after}"
        optional = "" if is_required else "?"
        rules += [
            f"{written}: {json_text(f'{key}=')} %json {json_text(value)}",
            f"{name}_{number}: {written} {name}_more_{after}{left_out}",
            f'{name}_more_{number}: (", " {written}){optional} {name}_more_{after}',
        ]
    return rules


class _Parser(MarkedCallParser):
    _marks = (OPEN,)

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark, (yield from self._source.whitespace())]
        while True:
            name = yield from self._source.word(_WORD_END, held)
            if not name or not (yield from self._source.mark("(")):
                if (yield from self._source.peek()):
                    self._content("".join(held))
                return False
            self._start_call(name)
            if not (yield from self._arguments_of_call()):
                return False
            held = [(yield from self._source.whitespace())]
            if (yield from self._source.mark(CLOSE, cut=True)):
                return True
            if (yield from self._source.mark(",")):
                held += [",", (yield from self._source.whitespace())]

    def _arguments_of_call(self) -> Reading[bool]:
        """Read all arguments and the bracket; False: the text has ended, or goes on."""
        before = "{"
        while True:
            yield from self._source.whitespace()
            if (yield from self._source.mark(")")):
                self._arguments("{}" if before == "{" else "}")
                return True
            key = yield from self._source.word(_WORD_END, [])
            if not key or not (yield from self._source.mark("=")):
                if (yield from self._source.peek()):  # no more of a call
                    self._arguments("{}" if before == "{" else "}")
                return False
            self._arguments(f"{before}{json_text(key)}: ")
            before = ", "
            if not (yield from self._value()):
                return False
            yield from self._source.whitespace()
            yield from self._source.mark(",")

    def _value(self) -> Reading[bool]:
        """Read a value, and give it as JSON; False: the text has ended within it."""
        first = yield from self._source.peek()
        if first == '"':
            return (yield from self._source.json_value(self._arguments))
        pieces: list[str] = []
        if first == "'":
            is_whole = yield from self._quoted(pieces)
            self._arguments(json_text("".join(pieces))[: None if is_whole else -1])
            return is_whole
        if first in ("{", "["):
            is_whole = yield from self._source.json_value(pieces.append)
            text = "".join(pieces)
            self._arguments(as_json(text, {"object", "array"}) if is_whole else text)
            return is_whole
        yield from self._source.while_not(_SCALAR_END, pieces.append)
        if not (yield from self._source.peek()):
            return False
        word = "".join(pieces)
        self._arguments(as_json(PYTHON_WORDS.get(word, word) or "null", set()))
        return True

    def _quoted(self, pieces: list[str]) -> Reading[bool]:
        """Read a text in Python's quotes; False: the text has ended within it."""
        yield from self._source.mark("'")
        while True:
            yield from self._source.while_not(_IN_QUOTES, pieces.append)
            if (yield from self._source.mark("'")):
                return True
            if not (yield from self._source.mark("\\")):
                return False
            if not (escaped := (yield from self._source.peek())):
                return False
            yield from self._source.mark(escaped)
            pieces.append(_ESCAPES.get(escaped, escaped))
