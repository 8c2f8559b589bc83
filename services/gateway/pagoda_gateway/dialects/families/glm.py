r"""GLM 4.5 and later: a function's name, and then a key and a value between tags, one by one.

`<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>`. From 4.7 on
there are no line ends; a parser reads both.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda_gateway.dialects.grammar import (
    Calls,
    Tool,
    check_names,
    json_text,
    mark,
    opening_rules,
)
from pagoda_gateway.dialects.parameters import (
    KEY_RULE,
    ParameterForm,
    ParameterParser,
    check_schemas,
    function_rules,
)
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading, Sink

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE, _VALUE_CLOSE = "<arg_value>", "</arg_value>"
_NAME_END = re.compile(r"[\s<]")
_SIGNS = "a space and '<'"
_NO_CLOSE = r"/(?s:.*)/ & ~/(?s:.*)<\/arg_value>(?s:.*)/"  # not even as text


class Glm:
    """The family."""

    name = "glm"
    marks = (OPEN, CLOSE, KEY, KEY_CLOSE, VALUE, _VALUE_CLOSE)
    call_id_chars = None

    def __init__(self, *, has_lines: bool = True) -> None:
        """`has_lines`: the model ends a line after a name, a key and a value."""
        self._line = r'"\n"' if has_lines else ""

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser(tools)

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
            UnfollowableError: schemas that it cannot hold, by their indices.
        """
        check_names(calls.tools, _NAME_END, _SIGNS)
        check_schemas(calls.tools)
        token_ids, line = calls.token_ids, self._line
        close = mark(_VALUE_CLOSE, token_ids)
        form = ParameterForm(
            before_key=mark(KEY, token_ids),
            before_value=f"{mark(KEY_CLOSE, token_ids)} {line} {mark(VALUE, token_ids)}",
            after_json=f"{close} {line}",
            text=f"call_words {line}",
            key_end=re.compile(r"<|^\Z"),
            signs="'<', and it has some sign",
        )
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        more = f" ({line} call_block)*" if calls.parallel else ""
        text = "" if calls.at_least_one else "call_text | "
        return [
            f"calls: {text}call_block{more}",
            f"call_block: call_open ({names}) {mark(CLOSE, token_ids)}",
            *opening_rules(OPEN, calls),
            *(
                rule
                for i, tool in enumerate(calls.tools)
                for rule in function_rules(i, tool, f"{json_text(tool.name)} {line}", form)
            ),
            *_words_rules(close, is_token=_VALUE_CLOSE in token_ids),
            KEY_RULE,
        ]


def _words_rules(close: str, *, is_token: bool) -> list[str]:
    """Return `call_words`, any text with the mark after it."""
    if not is_token:
        return [f"call_words[suffix={close}]: /(?s:.*)/"]
    return [f"call_words: CALL_WORDS {close}", f"CALL_WORDS: {_NO_CLOSE}"]


class _Parser(ParameterParser):
    _marks = (OPEN,)

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark, (yield from self._source.whitespace())]
        name = yield from self._source.word(_NAME_END, held)
        space = yield from self._source.whitespace()
        held.append(space)
        if not name or not (yield from self._source.ahead(KEY, CLOSE)):
            if self._source.ends_within(KEY, CLOSE) or not (yield from self._source.peek()):
                if name and space:
                    self._start_call(name)
            else:
                self._content("".join(held))
            return False
        self._start_call(name)
        return (yield from self._parameters(self._schemas.get(name, {})))

    def _parameters(self, schema: Mapping[str, Any]) -> Reading[bool]:
        """Read all parameters and the call's end; False: the text has ended, or goes on."""
        before = "{"
        while True:
            yield from self._source.whitespace()
            if (yield from self._source.mark(CLOSE)):
                self._arguments("{}" if before == "{" else "}")
                return True
            key = yield from self._key(schema)
            if not key:
                cut = self._source.ends_within(KEY, CLOSE)
                if not cut and (yield from self._source.peek()):  # no more of a call
                    self._arguments("{}" if before == "{" else "}")
                return False
            self._arguments(f"{before}{json_text(key)}: ")
            before = ", "
            if not (yield from self._value(key, schema, self._until_close)):
                return False

    def _key(self, schema: Mapping[str, Any]) -> Reading[str]:
        """Read a key, up to its value; "": there is none."""
        pieces: list[str] = []
        if not (yield from self._source.mark(KEY)):
            return ""
        if not (yield from self._source.until(KEY_CLOSE, pieces.append)):
            return ""
        yield from self._source.whitespace()
        has_value = yield from self._source.mark(VALUE)
        key, properties = "".join(pieces), schema.get("properties")
        is_known = isinstance(properties, dict) and key in properties
        return "" if not has_value else key if is_known else key.strip()

    def _until_close(self, sink: Sink) -> Reading[str]:
        return (yield from self._source.until_any((_VALUE_CLOSE,), sink))
