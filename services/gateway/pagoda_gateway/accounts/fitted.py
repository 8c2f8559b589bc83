"""Values of messages as columns take them: what a peer says may be any number and any text.

What an honest process says stays as it is. Knows columns by their types, and no table.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

MAX_INTEGER = 2**31 - 1  # of PostgreSQL's `integer`
MAX_BIG_INTEGER = 2**53 - 1  # below `bigint`'s, so that sums fit, too, and JSON has it exactly
MAX_SECONDS = 253_402_300_799.0  # the end of the year 9999; no duration in ms is as long either


class ContentError(Exception):
    """A database that is well does not take what a message says, whenever it comes."""


@contextlib.contextmanager
def content_told_apart() -> Iterator[None]:
    """Write nothing here but what a message says: what is refused is a ContentError then."""
    try:
        yield
    except (OverflowError, ValueError, sa.exc.DataError, sa.exc.IntegrityError) as error:
        reason = str(error).partition("\n")[0]
        raise ContentError(f"{type(error).__name__}: {reason[:200]}") from error


def fitted(table: sa.Table, values: dict[str, Any]) -> dict[str, Any]:
    """Return values of columns within what a database, a date and a sum take.

    Numbers are 0 or more: integers end at their column's limit, and a moment or a duration that is
    none is 0. Texts end at their column's length and have no NUL.
    """
    limits = _limits(table)
    return {name: _fitted(value, limits[name]) for name, value in values.items()}


def _fitted(value: Any, limit: int) -> Any:
    kind = type(value)
    if kind is int:
        return min(max(value, 0), limit)
    if kind is str:
        return value if len(value) <= limit and "\0" not in value else _text(value, limit)
    if kind is float:
        return value if 0 <= value <= MAX_SECONDS else 0.0  # a NaN is not
    if kind is dict:  # in JSON integers and texts may be any
        return {k: _fitted(v, limit) if type(v) is float else v for k, v in value.items()}
    return value


def _text(value: str, limit: int) -> str:
    return value.replace("\0", "")[:limit]


@functools.cache
def _limits(table: sa.Table) -> dict[str, int]:
    """Return the highest integer, or the longest text, of each column."""
    return {
        column.name: MAX_BIG_INTEGER
        if isinstance(column.type, sa.BigInteger)
        else getattr(column.type, "length", None) or MAX_INTEGER
        for column in table.c
    }
