"""Whether the branches of a `oneOf` exclude each other, so that it says what `anyOf` would.

Knows types, constants, and properties that both branches require. What it cannot tell is left to
llguidance, which knows some more.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from pagoda_gateway.text.schemas.parts import target_of

MAX_PAIRS = 1024  # of branches in one schema, about 7 ms
_MAX_DEPTH = 4
_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string"))
_TYPE_OF = {
    type(None): "null", bool: "boolean", dict: "object", list: "array", int: "number",
    float: "number", str: "string",
}  # fmt: skip


class Branches:
    """Looks at branches inside of one schema, at no more pairs than `MAX_PAIRS`."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._num_pairs = 0

    def exclude_each_other(self, branches: list[Any]) -> bool:
        """Return whether no value is valid under two of these; False: it cannot be said."""
        self._num_pairs += len(branches) * (len(branches) - 1) // 2
        if self._num_pairs > MAX_PAIRS:
            return False
        return all(self._are_disjoint(a, b, _MAX_DEPTH) for a, b in combinations(branches, 2))

    def _are_disjoint(self, a: Any, b: Any, depth: int) -> bool:
        if a is False or b is False:
            return True
        all_a, all_b = list(self._conjuncts(a)), list(self._conjuncts(b))
        if _are_apart(_values(all_a), _values(all_b)):
            return True
        common = _types(all_a) & _types(all_b)
        if common != {"object"} or not depth:
            return not common
        both = _required(all_a) & _required(all_b)
        return any(
            self._are_disjoint(first, second, depth - 1)
            for name in sorted(both)
            for first in _property(all_a, name)
            for second in _property(all_b, name)
        )

    def _conjuncts(self, part: Any) -> Iterator[dict[str, Any]]:
        """Yield schemas that all hold where `part` does: it, and what it refers to."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(part, dict):
                return
            if "$ref" not in part:
                yield part
                return
            # Beside `$ref`, older dialects read nothing; so nothing there is relied on.
            part = target_of(self._root, part)


def _values(parts: list[dict[str, Any]]) -> list[Any] | None:
    """Return values of which it must be one; None: nobody names them."""
    for part in parts:
        if "const" in part:
            return [part["const"]]
        if "enum" in part:
            values: list[Any] = part["enum"]
            return values
    return None


def _are_apart(a: list[Any] | None, b: list[Any] | None) -> bool:
    if a is None or b is None:
        return False
    keys = [{_key(value) for value in values} for values in (a, b)]
    return None not in keys[0] | keys[1] and not keys[0] & keys[1]


def _key(value: Any) -> tuple[str, Any] | None:
    """Return what equal values have in common; None: it is not one of the simple ones."""
    kind = _TYPE_OF[type(value)]
    return None if kind in ("object", "array") else (kind, value)


def _types(parts: list[dict[str, Any]]) -> frozenset[str]:
    """Return the types that a value may have; an integer is a number."""
    found = _TYPES
    for part in parts:
        if "type" in part:
            names = [part["type"]] if isinstance(part["type"], str) else part["type"]
            found &= frozenset("number" if name == "integer" else name for name in names)
    values = _values(parts)
    return found if values is None else found & {_TYPE_OF[type(value)] for value in values}


def _required(parts: list[dict[str, Any]]) -> set[str]:
    return {name for part in parts for name in part.get("required", ())}


def _property(parts: list[dict[str, Any]], name: str) -> list[Any]:
    return [part["properties"][name] for part in parts if name in part.get("properties", ())]
