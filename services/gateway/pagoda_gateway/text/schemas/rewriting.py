"""Schemas in words that llguidance knows, where it knows none that say the same.

Every rewriting is exact: the same values are valid before and after. What is rewritten stays at
its place, so that JSON pointers into the original hold, but for `anyOf` instead of `oneOf`.
"""

import re
from typing import Any

from pagoda_gateway.text.schemas.branches import Branches
from pagoda_gateway.text.schemas.numbers import make_numbers_plain
from pagoda_gateway.text.schemas.parts import dialect_of, has_tuples, schemas_in
from pagoda_gateway.text.schemas.patterns import rust_pattern

ENFORCED_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
_NOTES = frozenset(("title", "description", "$comment", "examples", "default", "deprecated"))
_ANYTHING: tuple[Any, ...] = (True, {})
_INSIDE = re.compile(r"/(patternP|p)roperties/")
_COMBINING = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
     "dependentSchemas", "dependencies", "contains")
)  # fmt: skip


def take_disjoint_branches_as_any(schema: dict[str, Any]) -> None:
    """Write `anyOf` for each `oneOf` that says the same, in place.

    Before anything else is changed: closed objects may exclude each other where those that the
    client wrote do not.
    """
    parts = [part for _, part in schemas_in(schema).values()]
    for part in _with_disjoint_branches(schema, parts):
        part["anyOf"] = part.pop("oneOf")


def rewrite(schema: dict[str, Any]) -> None:
    """Rewrite a checked schema with local references as llguidance takes it, in place."""
    parts = [part for _, part in schemas_in(schema).values()]
    for part in parts:
        _drop_what_binds_nothing(part)
        _drop_other_tuples(part, has_tuples(dialect_of(schema)))
        make_numbers_plain(part)
        _translate_patterns(part)
    # What moves from a pattern to a name has another place then, and the name's own schema, too.
    refers_inside = any(_INSIDE.search(str(part.get("$ref", ""))) for part in parts)
    for part in parts:
        _close(part, "unevaluatedProperties", "additionalProperties")
        if not isinstance(part.get("items"), list):
            _close(part, "unevaluatedItems", "items")
        _name_properties(schema, part)
        if not refers_inside:
            _name_what_patterns_list(schema, part)
        if part.get("not") in _ANYTHING:
            del part["not"]
            part["allOf"] = [*part.get("allOf", ()), False]


def _with_disjoint_branches(
    root: dict[str, Any], parts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the parts whose `oneOf` says what `anyOf` would."""
    if "draft-04" in dialect_of(root):
        return []  # `const` is no keyword there
    branches = Branches(root)
    one_of = [part for part in parts if "oneOf" in part and "anyOf" not in part]
    return [part for part in one_of if branches.exclude_each_other(part["oneOf"])]


def _drop_what_binds_nothing(part: dict[str, Any]) -> None:
    if part.get("format", "") not in ENFORCED_FORMATS:
        part.pop("format", None)  # an annotation
    part.pop("contentSchema", None)  # another one
    if "if" not in part:
        part.pop("then", None)
        part.pop("else", None)
    elif not part.keys() & {"then", "else"}:
        del part["if"]
    if part.get("uniqueItems") is False:
        del part["uniqueItems"]
    if part.get("not") is False:
        del part["not"]
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        if part.get(keyword) == {}:
            del part[keyword]
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if part.get(keyword) in _ANYTHING:
            del part[keyword]


def _drop_other_tuples(part: dict[str, Any], is_older: bool) -> None:
    """Drop what the dialect does not know or look at, as llguidance has one tuple for all."""
    if is_older:
        part.pop("prefixItems", None)
    if not is_older or not isinstance(part.get("items"), list):
        part.pop("additionalItems", None)


def _translate_patterns(part: dict[str, Any]) -> None:
    """Have patterns of ECMA-262 say the same in Rust."""
    if "pattern" in part:
        part["pattern"] = rust_pattern(part["pattern"])
    if "patternProperties" not in part:
        return
    translated: dict[str, Any] = {}
    for pattern, values in part["patternProperties"].items():
        key = rust_pattern(pattern)
        others = [translated[key]] if key in translated else []
        translated[key] = {"allOf": [*others, values]} if others else values
    part["patternProperties"] = translated


def _close(part: dict[str, Any], unevaluated: str, others: str) -> None:
    """Have `others` say what `unevaluated` does, where nothing else looks at the same values."""
    if unevaluated in part and not part.keys() & _COMBINING:
        part.setdefault(others, part[unevaluated])
        del part[unevaluated]


def _name_properties(root: dict[str, Any], part: dict[str, Any]) -> None:
    """Have `properties` or `patternProperties` say what `propertyNames` does."""
    names = part.get("propertyNames")
    if names is True:
        names = {}
    if not isinstance(names, dict) or (names.get("type", "string") != "string"):
        return
    rules = {key: value for key, value in names.items() if key != "type" and key not in _NOTES}
    others = part.get("additionalProperties", True)
    if not rules:
        pass
    elif rules.keys() == {"pattern"} and not part.keys() & {"properties", "patternProperties"}:
        part["patternProperties"] = {rules["pattern"]: others}
        part["additionalProperties"] = False
    elif len(rules) == 1 and rules.keys() <= {"enum", "const"} and "patternProperties" not in part:
        allowed = rules["enum"] if "enum" in rules else [rules["const"]]
        known = part.get("properties", {})
        other = _shared(root, others)
        part["properties"] = {
            name: known.get(name, other) for name in allowed if isinstance(name, str)
        }
        part["additionalProperties"] = False
    else:
        return
    del part["propertyNames"]


def _name_what_patterns_list(root: dict[str, Any], part: dict[str, Any]) -> None:
    """Have `properties` say what a pattern does whose names are all there, or required.

    After the last of them llguidance waits for one more, and there is none.
    """
    properties = part.get("properties", {})
    named = properties.keys() | part.get("required", ())
    for pattern, values in list(part.get("patternProperties", {}).items()):
        names = _names_listed(pattern)
        if names and names <= named:
            values = _shared(root, values)
            held = {name: properties[name] for name in names if name in properties}
            both = {name: {"allOf": [schema, values]} for name, schema in held.items()}
            properties = properties | dict.fromkeys(sorted(names), values) | both
            del part["patternProperties"][pattern]
    if properties:
        part["properties"] = properties


def _names_listed(pattern: str) -> frozenset[str]:
    """Return the names that match; none if it is no list of words, letters or digits."""
    one = re.fullmatch(r"\^(?:([\w-]+)|\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\)|\[(\w+)\])\$", pattern)
    if one is None:
        return frozenset()
    word, words, characters = one.groups()
    return frozenset(characters or (words or word).split("|"))


def _shared(root: dict[str, Any], schema: Any) -> Any:
    """Return what stands for `schema` in many places, without being as long."""
    if not isinstance(schema, dict):
        return schema
    definitions = root.setdefault("$defs", {})
    name = f"values {len(definitions)}"
    while name in definitions:
        name += "'"
    definitions[name] = schema
    return {"$ref": "#/$defs/" + name.replace(" ", "%20").replace("'", "%27")}
