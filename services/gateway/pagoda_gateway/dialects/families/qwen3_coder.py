r"""Qwen 3 Coder and 3.5, Nemotron 3, Step 3.5: parameters one by one, as text between tags.

`<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`. A
value is JSON where its schema asks for anything but a text; a text stands as it is, unquoted.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

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
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading
from pagoda_gateway.errors import UnfollowableError, shorten

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, PARAMETER = "<function=", "<parameter="
_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"
_KEY_END = re.compile(r"[>\n]")
_SIGNS = "'>' and the end of a line"
_ANNOTATIONS = {"type", "title", "description", "default", "examples", "deprecated"}
_OF_PROPERTIES = {
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs",
    "definitions", "$schema", "x-guidance",
}  # fmt: skip
_SHARED = ("$defs", "definitions", "x-guidance")
"""Of a function's schema, what the schemas of its parameters need as well."""

_LINE = "\n"
_OPENING = ("{", "[", '"')
_TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
    "object": dict, "null": type(None),
}  # fmt: skip


class Qwen3Coder:
    """The family."""

    name = "qwen3_coder"
    marks = (OPEN, CLOSE)
    call_id_chars = None

    def parser(self, tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser({tool.name: tool.arguments for tool in tools})

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
            UnfollowableError: schemas that it cannot hold, by their indices.
        """
        check_names(calls.tools, _KEY_END, _SIGNS)
        _check_schemas(calls.tools)
        more = r' ("\n" call_block)*' if calls.parallel else ""
        text = "" if calls.at_least_one else "call_text | "
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        end = json_text(f"{_FUNCTION_END}\n")
        return [
            f"calls: {text}call_block{more}",
            rf'call_block: call_open "\n" ({names}) {end} {mark(CLOSE, calls.token_ids)}',
            *opening_rules(OPEN, calls),
            *(rule for i, tool in enumerate(calls.tools) for rule in _function_rules(i, tool)),
            f"call_words[suffix={json_text(_PARAMETER_END)}]: /(?s:.*)/",
            r"CALL_KEY: /[A-Za-z_][A-Za-z0-9_.-]*/",
        ]


def _check_schemas(tools: Sequence[Tool]) -> None:
    unknown = {i: tool.arguments.keys() - _OF_PROPERTIES for i, tool in enumerate(tools)}
    at_fault = [i for i, names in unknown.items() if names]
    if at_fault:
        first = at_fault[0]
        raise UnfollowableError(
            f"this model cannot be held to the schema of the tool {shorten(tools[first].name)}: it "
            "writes parameters one by one, so they must be said by 'properties' and 'required', "
            f"not by {', '.join(map(repr, sorted(unknown[first])))}",
            param="tools",
            at_fault=at_fault,
        )


def _function_rules(index: int, tool: Tool) -> list[str]:
    """Return rules of one function: its properties in their order, those not required optional."""
    schema = tool.arguments
    head = json_text(f"{FUNCTION}{tool.name}>\n")
    required = schema.get("required", ())
    properties = {**(schema.get("properties") or {})}
    if not properties and not required and schema.get("additionalProperties") is not False:
        value = _value(schema.get("additionalProperties"), schema)
        return [f'call_{index}: {head} ("{PARAMETER}" CALL_KEY ">\\n" {value})*']
    properties |= {key: {} for key in required if key not in properties}
    names, rules = [], []
    for number, (key, value) in enumerate(properties.items()):
        if _KEY_END.search(key):
            raise unwritable("a function with a parameter", key, _SIGNS)
        if value is False:  # it may not be there
            continue
        name = f"call_{index}_{number}"
        rules.append(f"{name}: {json_text(f'{PARAMETER}{key}>' + _LINE)} {_value(value, schema)}")
        names.append(name if key in required else f"{name}?")
    return [f"call_{index}: {head} {' '.join(names)}", *rules]


def _value(value: Any, schema: Mapping[str, Any]) -> str:
    """Return words for a value and the tag after it."""
    line = json_text(_LINE)
    if not value or value is True or _is_plain_text(value):  # as the parser reads it
        return f"call_words {line}"
    whole = {name: schema[name] for name in _SHARED if name in schema}
    return f"%json {json_text(whole | value)} {json_text(_LINE + _PARAMETER_END)} {line}"


def _is_plain_text(value: Any) -> bool:
    """Return whether any text will do for a value, and nothing else."""
    if not isinstance(value, dict):
        return False
    return value.get("type") == "string" and value.keys() <= _ANNOTATIONS


class _Parser(MarkedCallParser):
    _mark = OPEN

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self._schemas = schemas

    def _block(self) -> Reading[bool]:
        held = [OPEN, (yield from self._source.whitespace())]
        if not (yield from self._source.mark(FUNCTION)):
            self._content("".join(held))
            return False
        held.append(FUNCTION)
        name = yield from self._name(held)
        if not name:
            if (yield from self._source.peek()):
                self._content("".join(held))
            return False
        self._start_call(name)
        if not (yield from self._parameters(self._schemas.get(name, {}))):
            return False
        yield from self._source.whitespace()
        yield from self._source.mark(CLOSE, cut=True)
        return True

    def _name(self, held: list[str]) -> Reading[str]:
        """Read a name and the sign after it; "" if there is none."""
        start = len(held)
        yield from self._source.while_not(_KEY_END, held.append)
        name = "".join(held[start:])
        if not (yield from self._source.mark(">")):
            return ""
        held.append(">")
        return name

    def _parameters(self, schema: Mapping[str, Any]) -> Reading[bool]:
        """Read all parameters and the function's end; False: the text has ended, or goes on."""
        before = "{"
        while True:
            yield from self._source.whitespace()
            if (yield from self._source.mark(_FUNCTION_END)):
                self._arguments("{}" if before == "{" else "}")
                return True
            if not (yield from self._source.mark(PARAMETER)):
                if (yield from self._source.peek()):  # no more of a call
                    self._arguments("{}" if before == "{" else "}")
                return False
            key = yield from self._name([])
            if not key:
                if (yield from self._source.peek()):
                    self._arguments("{}" if before == "{" else "}")
                return False
            self._arguments(f"{before}{json_text(key)}: ")
            before = ", "
            if not (yield from self._value(key, schema)):
                return False

    def _value(self, key: str, schema: Mapping[str, Any]) -> Reading[bool]:
        """Read a value; False: the text has ended within it."""
        yield from self._source.mark("\n")
        declared = _declared(key, schema)
        if not declared or _is_plain_text(declared):
            return (yield from self._text())
        pieces: list[str] = []
        if (yield from self._source.peek()) in _OPENING:  # within it the tag is text
            yield from self._source.json_value(pieces.append)
        whole = yield from self._source.until(_PARAMETER_END, pieces.append)
        if whole:
            text = "".join(pieces).removesuffix("\n")
            self._arguments(_as_json(text, _types(declared, schema)))
        return whole

    def _text(self) -> Reading[bool]:
        """Read a text as it comes; a line's end before its tag is the tag's."""
        self._arguments('"')
        kept = ""

        def take(piece: str) -> None:
            nonlocal kept
            text = kept + piece
            kept = "\n" if text.endswith("\n") else ""
            self._arguments(json_text(text.removesuffix("\n"))[1:-1])

        whole = yield from self._source.until(_PARAMETER_END, take)
        if whole:
            self._arguments('"')
        return whole


def _declared(key: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of a parameter, of which a client may have said anything."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def _as_json(text: str, types: set[str]) -> str:
    """Return a value as JSON: as it was written if it is, else as a text."""
    written = PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        value = orjson.loads(written)
    except orjson.JSONDecodeError:
        return json_text(text)
    is_known = any(_is_of(value, kind) for kind in types)
    return written if is_known or "string" not in types else json_text(text)


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES.get(kind, ()))  # type: ignore[arg-type]


def _types(value: Any, schema: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that a value may have, as far as its schema says so plainly."""
    if not isinstance(value, dict) or depth > 8:
        return set()
    reference = value.get("$ref")
    if isinstance(reference, str):
        _, _, name = reference.rpartition("/")
        for place in ("$defs", "definitions"):
            if reference == f"#/{place}/{name}":
                return _types(schema.get(place, {}).get(name), schema, depth + 1)
    found: set[str] = set()
    kind = value.get("type")
    if kind is not None:
        found |= {k for k in (kind if isinstance(kind, list) else [kind]) if isinstance(k, str)}
    for name in ("anyOf", "oneOf", "allOf"):
        for part in value.get(name) or ():
            found |= _types(part, schema, depth + 1)
    constants = [*(value.get("enum") or ()), *([value["const"]] if "const" in value else ())]
    if not found:
        found |= {kind for c in constants for kind in _TYPES if _is_of(c, kind)}
    return found
