"""Whether the branches of a `oneOf` exclude each other, so that it says what `anyOf` would.

Knows types, constants, and properties that both branches require. What it cannot tell is left to
llguidance, which knows some more.
"""

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
        a, b = self._meant(a), self._meant(b)
        if _are_apart(_values(a), _values(b)):
            return True
        common = _types(a) & _types(b)
        if common != {"object"} or not depth:
            return not common
        ours, theirs = a.get("properties", {}), b.get("properties", {})
        both = {*a.get("required", ())} & {*b.get("required", ())} & ours.keys() & theirs.keys()
        return any(self._are_disjoint(ours[name], theirs[name], depth - 1) for name in sorted(both))

    def _meant(self, part: Any) -> dict[str, Any]:
        """Return the schema that a part is or refers to; an empty one: it is not known."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(part, dict):
                break
            if "$ref" not in part:
                return part
            # Beside `$ref`, older dialects read nothing; so nothing there is relied on.
            part = target_of(self._root, part)
        return {}


def _values(part: dict[str, Any]) -> list[Any] | None:
    """Return values of which it must be one; None: it names none."""
    return [part["const"]] if "const" in part else part.get("enum")


def _are_apart(a: list[Any] | None, b: list[Any] | None) -> bool:
    if a is None or b is None:
        return False
    keys = [{_key(value) for value in values} for values in (a, b)]
    return None not in keys[0] | keys[1] and not keys[0] & keys[1]


def _key(value: Any) -> tuple[str, Any] | None:
    """Return what equal values have in common; None: it is not one of the simple ones."""
    kind = _TYPE_OF[type(value)]
    return None if kind in ("object", "array") else (kind, value)


def _types(part: dict[str, Any]) -> frozenset[str]:
    """Return the types that a value may have; an integer is a number."""
    found = _TYPES
    if "type" in part:
        names = [part["type"]] if isinstance(part["type"], str) else part["type"]
        found &= frozenset("number" if name == "integer" else name for name in names)
    values = _values(part)
    return found if values is None else found & {_TYPE_OF[type(value)] for value in values}
