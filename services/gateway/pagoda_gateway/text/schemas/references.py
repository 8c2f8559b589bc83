"""References by name in a JSON schema, as pointers from its top: what each of them means is there.

Knows `$id` and `$anchor`, and what older dialects had instead. Nothing is ever fetched.
"""

from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from pagoda_gateway.errors import shorten
from pagoda_gateway.text.schemas.parts import (
    check_shapes,
    dialect_of,
    parts_of,
    refuse,
    target_of,
)

_OUTSIDE = "it must point into the schema; put what it means into '$defs'"
_NEWEST = "https://json-schema.org/draft/2020-12/schema"
_NAMES = ("$id", "$anchor")


def make_references_local(root: dict[str, Any]) -> None:
    """Write each `$ref` as `#` and a JSON pointer, and take all names away, in place.

    Raises:
        InvalidRequestError: a reference leads out of the schema, or a name cannot be one.
    """
    _Names(root).resolve()


def _known_as(dialect: str) -> str:
    """Return what spellings of a dialect have in common; without one it is the newest."""
    return (dialect or _NEWEST).partition("//")[2].rstrip("#/")


class _Names:
    """The names of one schema, and where they are."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._dialect = dialect_of(root)
        self._id = "id" if "draft-04" in self._dialect else "$id"
        self._places = {("", ""): ""}  # by URI and anchor
        self._seen: dict[int, dict[str, Any]] = {}
        self._found: list[tuple[str, dict[str, Any], str]] = []

    def resolve(self) -> None:
        """Do it: names first, as a reference may come before what it names."""
        self._collect("", self._root, "")
        while self._found:
            place, part, base = self._found.pop()
            if "$ref" not in part:
                continue
            uri = self._rewrite(place, part, base)
            self._collect(unquote(part["$ref"][1:]), target_of(self._root, part), uri)
        for part in self._seen.values():
            for name in {*_NAMES, self._id}:
                part.pop(name, None)

    def _collect(self, place: str, part: Any, base: str) -> None:
        """Note a schema and all inside of it that nobody has seen yet; `base` is around it."""
        waiting = [(place, part, base)]
        while waiting:
            place, part, base = waiting.pop()
            if not isinstance(part, dict) or id(part) in self._seen:
                continue
            self._seen[id(part)] = part
            check_shapes(part, place, dialect=self._dialect)
            base = self._name(place, part, base)
            self._found.append((place, part, base))
            inner = parts_of(part, place, dialect=self._dialect)
            waiting += [(inner_place, inner_part, base) for inner_place, inner_part in inner]

    def _name(self, place: str, part: dict[str, Any], base: str) -> str:
        """Note what a schema is called; return what references in it are relative to."""
        is_older = "draft-0" in self._dialect
        inner_dialect = part.pop("$schema", "") if place else ""
        if inner_dialect and _known_as(inner_dialect) != _known_as(self._dialect):
            why = f"is {shorten(inner_dialect)}; a schema has one dialect, named at its top"
            raise refuse(place, "$schema", why)
        if is_older and "$ref" in part:
            return base  # what is beside it is not read
        name = part.get(self._id, "")
        name = name if isinstance(name, str) else ""
        uri, anchor = self._split(place, self._id, name, base)
        if anchor and not is_older:
            raise refuse(place, self._id, f"is {shorten(name)}; it must have no fragment")
        if name.partition("#")[0]:
            self._note(place, part, self._id, (uri, ""))
        base = uri
        if not place:
            self._places.setdefault((base, ""), "")
        if is_older and anchor:
            self._note(place, part, self._id, (base, anchor))
        elif not is_older and "$anchor" in part:
            self._note(place, part, "$anchor", (base, part["$anchor"]))
        return base

    def _split(self, place: str, keyword: str, name: str, base: str) -> tuple[str, str]:
        """Return URI and fragment of a name that is relative to `base`."""
        try:
            uri, fragment = urldefrag(name)
            return urljoin(base, uri) if uri else base, fragment
        except ValueError as error:
            raise refuse(place, keyword, f"is {shorten(name)}, which is no URI") from error

    def _note(self, place: str, part: dict[str, Any], keyword: str, name: tuple[str, str]) -> None:
        if self._places.setdefault(name, place) != place:
            why = f"is {shorten(part[keyword])}, as at '{self._places[name]}'; names differ"
            raise refuse(place, keyword, why)

    def _rewrite(self, place: str, part: dict[str, Any], base: str) -> str:
        """Have a reference point from the top; return what is around its target."""
        written = part["$ref"]
        uri, fragment = self._split(place, "$ref", written, base)
        is_pointer = fragment.startswith("/")
        key = (uri, "" if is_pointer else unquote(fragment))
        if key not in self._places:
            raise refuse(place, "$ref", f"is {shorten(written)}: {_OUTSIDE}")
        target = self._places[key]
        if target or not written.startswith("#") or not (is_pointer or not fragment):
            part["$ref"] = "#" + quote(target) + (fragment if is_pointer else "")
        return uri
