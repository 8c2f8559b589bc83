"""Where the schemas inside a JSON schema are, and what each keyword's value must look like.

Knows the metaschemas of JSON Schema. Knows nothing of what llguidance can do.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import unquote

from pagoda_gateway.errors import InvalidRequestError, shorten

_TYPE_NAMES = ("null", "boolean", "object", "array", "number", "string", "integer")
_ONE = {
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items",
    "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
_LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_MAPS = {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}

COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _are_names(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value)) == len(value)


def _are_types(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _are_names(names) and bool(names) and set(names) <= set(_TYPE_NAMES)


Schemas: TypeAlias = dict[int, tuple[str, dict[str, Any]]]
"""(JSON pointer, schema) by the schema's `id`."""

Shape: TypeAlias = tuple[str, Callable[[Any], bool]]
_TEXT: Shape = ("text", _is_text)
_NUMBER: Shape = ("a number", _is_number)
_COUNT: Shape = ("a whole number, 0 or more", _is_count)
_FLAG: Shape = ("true or false", lambda value: isinstance(value, bool))
_LIST: Shape = ("a list", lambda value: isinstance(value, list))
_NAMES: Shape = ("a list of different texts", _are_names)
_TYPES: Shape = (f"one of {', '.join(_TYPE_NAMES)}, or a list of some, each once", _are_types)
_ABOVE_ZERO: Shape = ("a number above 0", lambda value: _is_number(value) and value > 0)

_SHAPES: dict[str, Shape] = {
    **dict.fromkeys(
        ("$anchor", "$comment", "$id", "$ref", "$schema", "contentEncoding", "contentMediaType",
         "description", "format", "pattern", "title"), _TEXT,
    ),
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(COUNTS, _COUNT),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _FLAG),
    **dict.fromkeys(("enum", "examples"), _LIST),
    "multipleOf": _ABOVE_ZERO,
    "required": _NAMES,
    "type": _TYPES,
}  # fmt: skip


def inside(value: object) -> list[Any]:
    """Return the values directly inside of JSON data."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def dialect_of(root: dict[str, Any]) -> str:
    """Return what `$schema` names; empty: the newest."""
    dialect = root.get("$schema", "")
    return dialect if isinstance(dialect, str) else ""


def has_tuples(dialect: str) -> bool:
    """Return whether a list in `items` is a tuple, and `prefixItems` says nothing."""
    return "draft-0" in dialect or "2019-09" in dialect


def schemas_in(root: dict[str, Any]) -> Schemas:
    """Return all schemas inside of `root`, it included, and what they refer to in it.

    Raises:
        InvalidRequestError: one is no schema, or a keyword has a value that it cannot have; names
            keyword, place and what the value must be.
    """
    dialect = dialect_of(root)
    found: Schemas = {}
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, bool) or id(part) in found:
            continue
        if not isinstance(part, dict):
            raise InvalidRequestError(
                f"{shorten(part)} {at(place)} must be a schema: an object, true or false"
            )
        found[id(part)] = (place, part)
        check_shapes(part, place, dialect=dialect)
        waiting += parts_of(part, place, dialect=dialect)
        target = target_of(root, part)
        if target is not None:
            waiting.append((unquote(part["$ref"][1:]), target))
    return found


def schemas_directly_in(
    root: dict[str, Any], schema: dict[str, Any], place: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return (JSON pointer, schema) of those one step inside of a checked one, `$ref` being one.

    Definitions are not inside of what has them: only references lead there.
    """
    body = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    found = list(parts_of(body, place, dialect=dialect_of(root)))
    target = target_of(root, schema)
    if target is not None:
        found.append((unquote(schema["$ref"][1:]), target))
    return [(inner, part) for inner, part in found if isinstance(part, dict)]


def target_of(root: dict[str, Any], part: dict[str, Any]) -> Any | None:
    """Return what `$ref` points at inside of `root`; None: nothing, or it is no JSON pointer."""
    pointer = part.get("$ref")
    if pointer is None or (pointer != "#" and not pointer.startswith("#/")):
        return None
    target: Any = root
    for key in unquote(pointer[1:]).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list):
            is_index = key.isdecimal() and len(key) < 10 and int(key) < len(target)
            target = target[int(key)] if is_index else None
        else:
            target = target.get(key) if isinstance(target, dict) else None
    return target


def refuse(place: str, keyword: str, why: str) -> InvalidRequestError:
    """Return the error of a keyword in the schema at `place`, a JSON pointer."""
    return InvalidRequestError(f"'{keyword}' {at(place)} {why}")


def at(place: str) -> str:
    """Return words for where a JSON pointer points."""
    return f"at '{place}'" if place else "at the top"


def _join(place: str, *keys: object) -> str:
    return place + "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def check_shapes(schema: dict[str, Any], place: str, *, dialect: str) -> None:
    """Refuse keywords of `schema` whose values they cannot have."""
    is_draft4 = "draft-04" in dialect
    for keyword, value in schema.items():
        if is_draft4 and keyword in ("exclusiveMaximum", "exclusiveMinimum"):
            wanted, fits = _FLAG
        elif keyword in _MAPS:
            wanted, fits = "an object of schemas", lambda v: isinstance(v, dict)
        elif keyword in _LISTS:
            wanted, fits = "a list of schemas, not empty", lambda v: isinstance(v, list) and v != []
        elif keyword in _SHAPES:
            wanted, fits = _SHAPES[keyword]
        else:
            continue
        if not fits(value):
            raise refuse(place, keyword, f"is {shorten(value)}; it must be {wanted}")


def parts_of(schema: dict[str, Any], place: str, *, dialect: str) -> Iterator[tuple[str, Any]]:
    """Yield (JSON pointer, value) of what must be schemas directly inside of `schema`."""
    for keyword, value in schema.items():
        if keyword in _MAPS:
            yield from ((_join(place, keyword, name), part) for name, part in value.items())
        elif keyword in _LISTS or (
            keyword == "items" and isinstance(value, list) and has_tuples(dialect)
        ):
            yield from ((_join(place, keyword, index), part) for index, part in enumerate(value))
        elif keyword == "items" and isinstance(value, list):
            raise refuse(
                place, keyword, "is a list; name the parts of a tuple in 'prefixItems', or the "
                "older dialect in '$schema'"
            )  # fmt: skip
        elif keyword in _ONE:
            yield _join(place, keyword), value
