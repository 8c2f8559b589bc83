r"""Qwen 3 Coder and 3.5, Nemotron 3, Step 3.5; with tags of its own Seed-OSS: one tag a parameter.

`<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`.
Models forget the first tag, or a value's last one, and are understood.
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
SEED_OPEN, SEED_CLOSE = "<seed:tool_call>", "</seed:tool_call>"
FUNCTION, PARAMETER = "<function=", "<parameter="
_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"
_KEY_END = re.compile(r"[>\n]")
_SIGNS = "'>' and the end of a line"
_FORM = ParameterForm(
    before_key=json_text(PARAMETER),
    before_value=json_text(">\n"),
    after_json=json_text(f"\n{_PARAMETER_END}\n"),
    text=r'call_words "\n"',
    key_end=_KEY_END,
    signs=_SIGNS,
)
_NO_TAGS = rf"/(?s:.*)/ & ~/(?s:.*)({PARAMETER}|<\/function>)(?s:.*)/"
"""A text that no parser takes for a value whose last tag was left out."""


class Qwen3Coder:
    """The family."""

    call_id_chars = None

    def __init__(self, name: str = "qwen3_coder", opening: str = OPEN, close: str = CLOSE) -> None:
        """Take the family's name, and the tags of its calls."""
        self.name = name
        self.marks = (opening, close)

    @classmethod
    def seed(cls) -> "Qwen3Coder":
        """Return Seed-OSS."""
        return cls("seed_oss", SEED_OPEN, SEED_CLOSE)

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser(tools, *self.marks)

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
            UnfollowableError: schemas that it cannot hold, by their indices.
        """
        check_names(calls.tools, _KEY_END, _SIGNS)
        check_schemas(calls.tools)
        opening, close = self.marks
        more = r' ("\n" call_block)*' if calls.parallel else ""
        first, begin = "call_block", []
        if not calls.at_least_one:
            first = "call_text | (call_block | call_bare)"
            begin = [
                "call_bare: call_function call_end",
                f"call_function[lazy]: CALL_TEXT {json_text(FUNCTION)}",
            ]
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        head = json_text("\n" + FUNCTION)
        return [
            f"calls: {first}{more}",
            f"call_block: call_open {head} call_end",
            *begin,
            rf'call_end: ({names}) "{_FUNCTION_END}\n" {mark(close, calls.token_ids)}',
            *opening_rules(opening, calls),
            *(
                rule
                for i, tool in enumerate(calls.tools)
                for rule in function_rules(i, tool, json_text(f"{tool.name}>\n"), _FORM)
            ),
            f"call_words[suffix={json_text(_PARAMETER_END)}]: CALL_WORDS",
            f"CALL_WORDS: {_NO_TAGS}",
            KEY_RULE,
        ]


class _Parser(ParameterParser):
    _line = "\n"

    def __init__(self, tools: Sequence[Tool], opening: str, close: str) -> None:
        self._marks = (opening, FUNCTION)
        self._close = close
        super().__init__(tools)

    def _block(self, mark: str) -> Reading[bool]:
        held = [mark]
        is_bare = mark == FUNCTION
        if not is_bare:
            held.append((yield from self._source.whitespace()))
            if not (yield from self._source.mark(FUNCTION, cut=True)):
                if (yield from self._source.peek()):
                    self._content("".join(held))
                return False
            held.append(FUNCTION)
        name = yield from self._name(held)
        if not name or (is_bare and name not in self._schemas):
            said = "".join(held)
            names = (f"{FUNCTION}{known}>" for known in self._schemas)
            is_call = not is_bare or any(known.startswith(said) for known in names)
            if not is_call or (yield from self._source.peek()):
                self._content(said)
            return False
        self._start_call(name)
        if not (yield from self._parameters(self._schemas.get(name, {}))):
            return False
        yield from self._source.whitespace()
        yield from self._source.mark(self._close, cut=True)
        return True

    def _name(self, held: list[str]) -> Reading[str]:
        """Read a name and the sign after it; "" if there is none."""
        name = yield from self._source.word(_KEY_END, held)
        if not (yield from self._source.mark(">")):
            return ""
        held.append(">")
        return name

    def _parameters(self, schema: Mapping[str, Any]) -> Reading[bool]:
        """Read all parameters and the function's end; False: the text has ended, or goes on."""
        keys: dict[str, None] = {}  # that are written
        following = yield from self._next_key()
        while following and following != _FUNCTION_END:
            self._arguments(f"{', ' if keys else '{'}{json_text(following)}: ")
            keys[following] = None
            yield from self._source.mark("\n")

            def read(sink: Sink) -> Reading[str]:
                return self._value_end(sink, schema, keys)

            following = yield from self._value(following, schema, read)
            if following == _PARAMETER_END:
                following = yield from self._next_key()
            elif not following:
                return False
        if following or (yield from self._source.peek()):  # what is no more of a call ends it, too
            self._arguments("}" if keys else "{}")
        return bool(following)

    def _next_key(self) -> Reading[str]:
        """Read up to the next value, and return its key, or the function's end; "": neither is."""
        yield from self._source.whitespace()
        if (yield from self._source.mark(_FUNCTION_END)):
            return _FUNCTION_END
        if (yield from self._source.mark(PARAMETER)):
            return (yield from self._name([]))
        self._source.ends_within(_FUNCTION_END, PARAMETER)
        return ""

    def _value_end(
        self, sink: Sink, schema: Mapping[str, Any], keys: dict[str, None]
    ) -> Reading[str]:
        """Read a value with its end: its tag, or, where that is missing, what else is its end.

        Returns:
            The tag, the function's end, or the key of the next value; "": the text has ended.
        """
        tags = (_PARAMETER_END, PARAMETER, _FUNCTION_END)
        while found := (yield from self._source.until_any(tags, sink)):
            if found == _PARAMETER_END:
                return found
            held = [found]
            if found == PARAMETER:
                key = yield from self._name(held)
                if key and key not in keys and _may_have(key, schema):
                    return key
            else:
                held.append((yield from self._source.whitespace()))
                if (yield from self._source.ahead(self._close, *self._marks)):
                    return found
                if not (yield from self._source.peek()):
                    return found
            sink("".join(held))  # a text about such tags
        return ""


def _may_have(key: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a function has such a parameter; one that names none may have any."""
    properties = schema.get("properties")
    return not isinstance(properties, dict) or not properties or key in properties
