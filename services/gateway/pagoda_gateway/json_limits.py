"""How much structure a body may have, counted on its bytes before anything is built from them.

Eight megabytes of text are one object; eight megabytes of `[0],` are two million, and minutes of
work for whoever looks at each. Knows JSON's bytes only.
"""

import codecs
from collections.abc import Sized

import numpy as np

from pagoda_gateway.errors import InvalidRequestError, shorten

MAX_DEPTH = 100
MAX_CONTAINERS = 65_536  # objects and arrays
MAX_VALUES = 1_200_000  # a million token ids, and the rest
MAX_MEMBERS = 1024  # of the body itself: no schema here has so many fields
_FEW_VALUES = 65_536  # fewer are parsed sooner than counted

_MEMBERS = "has {} members at its top"
_OPENING, _CLOSING = b"[{", b"]}"


def json_problem(raw: bytes, error: ValueError) -> str:
    """Return what is wrong with bytes that are no JSON, as whoever sent them can mend it.

    A parser calls every byte that is not UTF-8 a surrogate.
    """
    if raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it begins with a byte order mark; send UTF-8 without one"
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return f"it is not UTF-8: byte 0x{raw[wrong.start]:02x} at {wrong.start}"
    return shorten(str(error))


def check_structure(raw: bytes) -> None:
    """Refuse JSON that is nested too deep, or has too many values, or too many at its top.

    Raises:
        InvalidRequestError: says how many there are and the limit.
    """
    num_brackets = raw.count(b"[") + raw.count(b"{")
    if num_brackets <= MAX_DEPTH and raw.count(b",") <= _FEW_VALUES:
        return  # whatever of it is inside strings
    counts = count_structure(raw)
    limits = (MAX_DEPTH, MAX_CONTAINERS, MAX_VALUES, MAX_MEMBERS)
    names = ("is nested {} deep", "has {} objects and arrays", "has {} values", _MEMBERS)
    for count, limit, name in zip(counts, limits, names, strict=True):
        if count > limit:
            raise _too_much(name.format(count), limit)


def check_members(value: Sized) -> None:
    """Refuse an object that has too many members, where its bytes were too few to be counted.

    Raises:
        InvalidRequestError: says how many there are and the limit.
    """
    if len(value) > MAX_MEMBERS:
        raise _too_much(_MEMBERS.format(len(value)), MAX_MEMBERS)


def _too_much(has: str, limit: int) -> InvalidRequestError:
    return InvalidRequestError(f"the body {has}; the limit is {limit}. Send less at once.")


def count_structure(raw: bytes) -> tuple[int, int, int, int]:
    """Return what JSON text has: depth, objects and arrays, values, and those at its top.

    Of the values it may be a little less.

    Whole-array passes: they cost the same whatever the text is, and let other threads run.
    """
    # Backslashes are only in strings and are read from the left, so pairs go first.
    plain = raw.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    data = np.frombuffer(plain, np.uint8)
    quotes = (data == ord('"')).view(np.uint8)
    is_outside = np.bitwise_xor.accumulate(quotes) == 0
    data = data[is_outside]
    opening = np.isin(data, np.frombuffer(_OPENING, np.uint8), kind="table")
    closing = np.isin(data, np.frombuffer(_CLOSING, np.uint8), kind="table")
    steps = opening.astype(np.int8) - closing.astype(np.int8)
    depths = np.cumsum(steps, dtype=np.int32)
    commas = data == ord(",")
    num_containers = int(np.count_nonzero(opening))
    num_values = int(np.count_nonzero(commas)) + num_containers
    num_members = int(np.count_nonzero(commas & (depths == 1))) + 1
    return int(depths.max(initial=0)), num_containers, num_values, num_members
