"""Fields of a body that nobody here knows, or that bind nothing: named in a header of the answer.

Knows names only; a client that misspells a field finds it there.
"""

import functools
import itertools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from starlette.types import Scope

IGNORED_HEADER = "x-pagoda-ignored"
MAX_NAMES = 20
MAX_NAME_CHARS = 64

_SCOPE_NAME = "pagoda.ignored"
_PLAIN = re.compile(r"[!-$&-+\--~]+")  # printable ASCII without space, comma and percent


def note_ignored(scope: Scope, value: dict[str, Any], schema: type[BaseModel]) -> None:
    """Keep the names of the first fields that `schema` does not have: of the body, of its objects.

    Objects in lists (messages, tools) are not looked at: every provider has members of its own.
    """
    known = schema.__pydantic_fields__  # `model_fields` asks who asks, each time
    parts = _parts(schema)
    if value.keys() <= known.keys() and parts.keys().isdisjoint(value):  # as nearly always
        return
    names = map(_encoded, itertools.islice(_unknown(value, schema), MAX_NAMES))
    scope[_SCOPE_NAME] = ",".join(sorted(filter(None, names)))


def _unknown(value: dict[str, Any], schema: type[BaseModel], where: str = "") -> Iterator[str]:
    """Yield where fields are that are in no schema."""
    known, parts = schema.__pydantic_fields__, _parts(schema)
    for name, member in value.items():
        if name not in known:
            yield where + name
        elif name in parts and isinstance(member, dict):
            yield from _unknown(member, parts[name], f"{where}{name}.")


@functools.cache
def _parts(schema: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the fields of a schema that are objects with a schema."""
    parts = {}
    for name, field in schema.__pydantic_fields__.items():
        kinds = typing.get_args(field.annotation)
        for kind in kinds if type(None) in kinds else (field.annotation,):  # or a list's
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                parts[name] = kind
    return parts


def _encoded(name: str) -> str:
    """Return a name as a header can carry it: cut, and what is not plain percent-encoded."""
    name = name[:MAX_NAME_CHARS]
    if _PLAIN.fullmatch(name):
        return name
    encoded = ""
    for char in name:
        part = char if _PLAIN.fullmatch(char) else quote(char)
        if len(encoded) + len(part) > MAX_NAME_CHARS:  # never within a character
            break
        encoded += part
    return encoded


def note_loose(scope: Scope, names: Sequence[str]) -> None:
    """Add parts of a body that bind nothing, though they are known."""
    if names:
        noted = [*filter(None, ignored_of(scope).split(",")), *names]
        scope[_SCOPE_NAME] = ",".join(noted[:MAX_NAMES])


def ignored_of(scope: Scope) -> str:
    """Return the header's value; empty if there is nothing to name."""
    names: str = scope.get(_SCOPE_NAME, "")
    return names
