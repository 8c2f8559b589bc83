"""Arguments that a model writes one by one, as texts: read, and held, by the tool's schema.

A value is JSON where its schema asks for anything but a text; a text stands as it is, unquoted.
Knows no marks.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from pagoda_gateway.dialects.call_parser import PYTHON_WORDS, MarkedCallParser
from pagoda_gateway.dialects.grammar import Tool, json_text, unwritable
from pagoda_gateway.dialects.source import Reading, Sink
from pagoda_gateway.errors import UnfollowableError, shorten

_MAX_LITERAL_CHARS = 16_384  # a literal is parsed on the event loop
_LITERAL = re.compile(r"""(?:[^\\]|\\[\\'"nrtxu])*""")  # Python warns of other escapes
_ANNOTATIONS = {"type", "title", "description", "default", "examples", "deprecated"}
_OF_PROPERTIES = {
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs",
    "definitions", "$schema", "x-guidance",
}  # fmt: skip
_SHARED = ("$defs", "definitions", "x-guidance")
"""Of a function's schema, what the schemas of its parameters need as well."""

_OPENING = ("{", "[", '"')
_TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
    "object": dict, "null": type(None),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParameterForm:
    """How a family writes one parameter, in the words of a grammar.

    Attributes:
        before_key, before_value: marks.
        after_json: marks after a value that is JSON.
        text: a value that is any text, with the marks after it.
        key_end: what ends a key; no key may hold it.
        signs: names it.
    """

    before_key: str
    before_value: str
    after_json: str
    text: str
    key_end: re.Pattern[str]
    signs: str


def check_schemas(tools: Sequence[Tool]) -> None:
    """Refuse schemas that are no list of parameters.

    Raises:
        UnfollowableError: says which they are, by their indices.
    """
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


def function_rules(index: int, tool: Tool, head: str, form: ParameterForm) -> list[str]:
    """Return rules of one function: its properties in their order, those not required optional.

    The first is named `call_` and the index. They need `CALL_KEY`. `head`: words before them.

    Raises:
        InvalidRequestError: a key that the form cannot hold.
    """
    schema = tool.arguments
    parameters = parameters_of(tool)
    if parameters is None:
        value = _value_words(schema.get("additionalProperties"), schema, form)
        parameter = f"{form.before_key} CALL_KEY {form.before_value} {value}"
        return [f"call_{index}: {head} ({parameter})*"]
    names, rules = [], []
    for number, (key, value, is_required) in enumerate(parameters):
        if form.key_end.search(key):
            raise unwritable("a function with a parameter", key, form.signs)
        name = f"call_{index}_{number}"
        words = _value_words(value, schema, form)
        rules.append(f"{name}: {form.before_key} {json_text(key)} {form.before_value} {words}")
        names.append(name if is_required else f"{name}?")
    return [f"call_{index}: {head} {' '.join(names)}", *rules]


def parameters_of(tool: Tool) -> list[tuple[str, Any, bool]] | None:
    """Return key, schema and whether it is required of each parameter; None: there may be any."""
    schema = tool.arguments
    required = schema.get("required", ())
    properties = {**(schema.get("properties") or {})}
    if not properties and not required and schema.get("additionalProperties") is not False:
        return None
    properties |= {key: {} for key in required if key not in properties}
    # What is False may not be there.
    return [(k, value, k in required) for k, value in properties.items() if value is not False]


def value_schema(value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter alone, with what it needs of its function's."""
    if not value or value is True:
        return {}
    return {**{name: schema[name] for name in _SHARED if name in schema}, **value}


KEY_RULE = r"CALL_KEY: /[A-Za-z_][A-Za-z0-9_.-]*/"
"""Keys of a function that says none."""


def _value_words(value: Any, schema: Mapping[str, Any], form: ParameterForm) -> str:
    """Return words for a value and the marks after it."""
    if not value or value is True or _is_plain_text(value):  # as the parser reads it
        return form.text
    return f"%json {json_text(value_schema(value, schema))} {form.after_json}"


class ParameterParser(MarkedCallParser):
    """Reads values."""

    _line = ""
    """A line's end that belongs to the mark after a value."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__()
        self._schemas = {tool.name: tool.arguments for tool in tools}

    def _value(
        self, key: str, schema: Mapping[str, Any], read: Callable[[Sink], Reading[str]]
    ) -> Reading[str]:
        """Read a value with `read`, and give it as JSON; "": the text has ended within it.

        `read` reads up to the value's end and returns something of it that is not "".
        """
        declared = _declared(key, schema)
        if not declared or _is_plain_text(declared):
            return (yield from self._text(read))
        pieces: list[str] = []
        if (yield from self._source.peek()) in _OPENING:  # within it the mark is text
            yield from self._source.json_value(pieces.append)
        end = yield from read(pieces.append)
        if end:
            text = "".join(pieces).removesuffix(self._line)
            self._arguments(as_json(text, _types(declared, schema)))
        return end

    def _text(self, read: Callable[[Sink], Reading[str]]) -> Reading[str]:
        """Read a text as it comes; a line's end before its mark may be the mark's."""
        self._arguments('"')
        kept = ""

        def take(piece: str) -> None:
            nonlocal kept
            text = kept + piece
            kept = self._line if self._line and text.endswith(self._line) else ""
            self._arguments(json_text(text.removesuffix(kept))[1:-1])

        end = yield from read(take)
        if end:
            self._arguments('"')
        return end


def _declared(key: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of a parameter, of which a client may have said anything."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


def _is_plain_text(value: Any) -> bool:
    """Return whether any text will do for a value, and nothing else."""
    if not isinstance(value, dict):
        return False
    return value.get("type") == "string" and value.keys() <= _ANNOTATIONS


def as_json(text: str, types: set[str]) -> str:
    """Return a value as JSON: as it was written if it is, else as a text.

    `types`: of JSON, that it may have; none: any.
    """
    written = PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        value = orjson.loads(written)
    except orjson.JSONDecodeError:
        literal = _literal(written) if types & {"object", "array"} else ""
        return literal or json_text(text)
    is_known = any(_is_of(value, kind) for kind in types)
    return written if is_known or "string" not in types else json_text(text)


def _literal(text: str) -> str:
    """Return an object or a list in Python's notation as JSON; "" if it is none."""
    if len(text) > _MAX_LITERAL_CHARS or not _LITERAL.fullmatch(text):
        return ""
    try:
        value = ast.literal_eval(text)
        if isinstance(value, dict | list):
            return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    return ""


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES.get(kind, ()))  # type: ignore[arg-type]


def _types(value: Any, schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a value may have, as far as its schema says so plainly."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [value]  # of a tool that is not strict nobody has checked the schema
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        waiting.append(_definition(part.get("$ref"), schema))
        for name in ("anyOf", "oneOf", "allOf"):
            waiting += _listed(part.get(name))
        kind = part.get("type")
        found |= {one for one in (*_listed(kind), kind) if isinstance(one, str)}
        if kind is None:
            constants = [*_listed(part.get("enum")), *([part["const"]] if "const" in part else ())]
            found |= {one for value in constants for one in _TYPES if _is_of(value, one)}
    return found


def _definition(reference: Any, schema: Mapping[str, Any]) -> Any:
    """Return what a reference names in a schema; None: nothing."""
    if not isinstance(reference, str):
        return None
    place, _, name = reference.removeprefix("#/").partition("/")
    definitions = schema.get(place) if place in ("$defs", "definitions") else None
    return definitions.get(name) if isinstance(definitions, dict) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
