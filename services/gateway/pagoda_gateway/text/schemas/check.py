"""What a JSON schema may not say, because a grammar of it would let through what it forbids.

What llguidance refuses by itself is left to it. Here is what it takes and does not hold: bounds
that a double cannot tell apart, keys that are counted twice, patterns of another dialect, values
without end, and schemas that are none.
"""

import copy
from collections import defaultdict
from typing import Any

import orjson

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.text.schemas.numbers import check_numbers
from pagoda_gateway.text.schemas.parts import Schemas, at, inside, refuse, schemas_in, target_of
from pagoda_gateway.text.schemas.patterns import UNWRITABLE, PatternError, rust_pattern
from pagoda_gateway.text.schemas.references import make_references_local
from pagoda_runtime.grammar import MAX_GRAMMAR_BYTES

MAX_DEPTH = 100  # a body's; llguidance ends at 128
_EXACT = 2**53  # whole numbers up to here have a double of their own


def check_schema(schema: dict[str, Any]) -> None:
    """Return if a grammar of `schema` allows only what `schema` does, as far as can be said here.

    Raises:
        InvalidRequestError: names the keyword, where it is as a JSON pointer, and what to do.
    """
    _check_size(schema)
    schema = copy.deepcopy(schema)
    make_references_local(schema)
    found = schemas_in(schema)
    check_numbers(found)
    for place, part in found.values():
        _check_values(part, place)
        _check_patterns(part, place)
        _check_min_properties(part, place)
    _check_ends(schema, found)


def _check_size(schema: dict[str, Any]) -> None:
    """Refuse what would take long to look at, or more levels than Python's stack has."""
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError as error:  # nested over 254 deep
        raise InvalidRequestError(f"it cannot be written as JSON: {error}") from error
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidRequestError(f"it has {size} bytes; the limit is {MAX_GRAMMAR_BYTES}")
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [part for value in level for part in inside(value)]
        if not level:
            return
    raise InvalidRequestError(f"it is nested over {MAX_DEPTH} deep, which is the limit")


def _check_values(part: dict[str, Any], place: str) -> None:
    """Refuse what no output can be in `const` and `enum`, at any depth."""
    # llguidance cuts a float that must be an integer to 64 bits.
    whole = (int, float) if "integer" in part.get("type", ()) else (int,)
    for keyword in ("const", "enum"):
        waiting = [part.get(keyword)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, whole) and abs(value) > _EXACT:
                why = f"has {shorten(value)}; whole numbers go to +-{_EXACT}; say it as text"
                raise refuse(place, keyword, why)
            if isinstance(value, str) and UNWRITABLE.search(value):
                why = f"has {shorten(value)}; of control characters only \\b \\f \\n \\r \\t can be"
                raise refuse(place, keyword, why)
            waiting += inside(value)


def _check_patterns(part: dict[str, Any], place: str) -> None:
    patterns = dict.fromkeys(part.get("patternProperties", {}), "patternProperties")
    if "pattern" in part:
        patterns[part["pattern"]] = "pattern"
    for pattern, keyword in patterns.items():
        try:
            rust_pattern(pattern)
        except PatternError as error:
            raise refuse(place, keyword, f"is {shorten(pattern)}: {error}") from error


def _check_min_properties(part: dict[str, Any], place: str) -> None:
    wanted = part.get("minProperties", 0)
    named = len(part.get("required", ()))
    if wanted > named + 1:
        raise refuse(
            place, "minProperties",
            f"is {wanted} and 'required' names {named}; a grammar cannot keep the others from "
            "being the same, so at most one can be without name"
        )  # fmt: skip


def _check_ends(root: dict[str, Any], found: Schemas) -> None:
    """Refuse what has no value of finite size: a list whose every node must have a next one."""
    needs = {key: _needs(root, part) for key, (_, part) in found.items()}
    owners = defaultdict(list)
    for key, clauses in needs.items():
        for index, options in enumerate(clauses):
            for option in options:
                owners[option].append((key, index))
    left = {key: len(clauses) for key, clauses in needs.items()}
    met = set()
    ending = [key for key, count in left.items() if count == 0]
    while ending:
        for clause in owners[ending.pop()]:
            if clause in met:
                continue
            met.add(clause)
            left[clause[0]] -= 1
            if left[clause[0]] == 0:
                ending.append(clause[0])
    for key, (place, _) in found.items():
        if left[key]:
            raise InvalidRequestError(
                f"the schema {at(place)} needs itself inside of itself, so no value of it ends; "
                "make a part of it optional or null"
            )


def _needs(root: dict[str, Any], part: dict[str, Any]) -> list[list[int]]:
    """Return lists of schemas by `id`: of each list one must end for `part` to end."""
    lists = [[target_of(root, part)], *([option] for option in part.get("allOf", ()))]
    lists += [part[keyword] for keyword in ("anyOf", "oneOf") if keyword in part]
    if part.get("type") in ("object", ["object"]):
        known = part.get("properties", {})
        others = part.get("additionalProperties")
        lists += [[known.get(name, others)] for name in part.get("required", ())]
    if part.get("type") in ("array", ["array"]):
        first, rest = part.get("prefixItems", []), part.get("items")
        if isinstance(rest, list):  # a tuple of an older dialect
            first, rest = rest, part.get("additionalItems")
        num_items = int(part.get("minItems", 0))
        lists += [[item] for item in first[:num_items]] + [[rest]] * (num_items > len(first))
    schemas = [options for options in lists if all(isinstance(one, dict) for one in options)]
    return [[id(one) for one in options] for options in schemas]
