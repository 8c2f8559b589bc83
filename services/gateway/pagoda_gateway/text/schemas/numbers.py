"""Numbers in JSON schemas: which of them llguidance keeps exactly, and how to write them for it.

Bounds are doubles to it, and 64-bit integers where it writes digits. `multipleOf` is a decimal of
32 bits, which it finds by multiplying a double by ten until it is whole.
"""

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from pagoda_gateway.errors import shorten
from pagoda_gateway.text.schemas.parts import COUNTS, Schemas, refuse

_EXACT = 2**53  # whole numbers up to here have a double of their own
_INT64_MAX = 2**63 - 1  # has none, but its bound is exact
_LEAST = 1e-50
_UINT32_MAX = 2**32 - 1
_MAX_COUNT = 2**31  # more than any output has of anything
_DIVISORS = sorted(2**twos * 5**fives for twos in range(7) for fives in range(7))
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_JOINED = frozenset(
    ("$ref", "anyOf", "oneOf", "properties", "patternProperties", "items", "prefixItems",
     "additionalProperties", "multipleOf")
)  # fmt: skip

Place: TypeAlias = tuple[str, dict[str, Any]]
"""A JSON pointer and the schema there."""


def check_numbers(found: Schemas) -> None:
    """Return if llguidance keeps the numbers of these schemas exactly.

    Raises:
        InvalidRequestError: names keyword, place and number.
    """
    for place, part in found.values():
        _check_bounds(part, place)
        for keyword in COUNTS:
            if keyword.startswith("min") and part.get(keyword, 0) > _MAX_COUNT:
                raise refuse(place, keyword, f"is {shorten(part[keyword])}; no output is so long")
        if "multipleOf" in part and not _steps(part["multipleOf"]):
            why = f"is {shorten(part['multipleOf'])}, which has too many digits to be kept exactly"
            raise refuse(place, "multipleOf", why)
    parts = list(found.values())
    if any("allOf" in part or _is_joined(part) for _, part in parts):
        _check_open_ends(parts)
        _check_meetings(parts)
    for entry in parts:
        _check_open_ends([entry])


def make_numbers_plain(part: dict[str, Any]) -> None:
    """Write the numbers of one checked schema as llguidance takes them, in place."""
    for keyword in COUNTS:
        if keyword in part:
            count = int(part.pop(keyword))
            if count <= _MAX_COUNT:
                part[keyword] = count
    if "multipleOf" in part:
        first, *others = _steps(part["multipleOf"])
        part["multipleOf"] = first
        if others:
            part["allOf"] = [*part.get("allOf", ()), *({"multipleOf": step} for step in others)]
    for keyword in _BOUNDS:
        if _is_far(keyword, part):
            nearer = _nearer(keyword, part)
            del part[keyword]
            if nearer < 0:
                part["minimum"] = max(nearer, part.get("minimum", nearer))
            else:
                part["maximum"] = min(nearer, part.get("maximum", nearer))


def _check_bounds(part: dict[str, Any], place: str) -> None:
    for keyword in _BOUNDS:
        value = part.get(keyword, 0)
        if isinstance(value, bool):  # as draft 4 has them
            continue
        limit = _limit(keyword, part)
        if 0 < abs(value) < _LEAST:
            raise refuse(place, keyword, f"is {shorten(value)}; numbers begin at +-{_LEAST}")
        if abs(value) > limit and not _is_far(keyword, part):
            raise refuse(place, keyword, f"is {shorten(value)}; whole ones go to +-{limit}")


def _is_far(keyword: str, part: dict[str, Any]) -> bool:
    """Return whether a bound is further out on its side than those that are exact.

    One of values that are named is none: a nearer one might leave none of them.
    """
    value: float = part.get(keyword, 0)
    if isinstance(value, bool) or part.keys() & {"const", "enum"}:
        return False
    return (-value if "inimum" in keyword else value) > _limit(keyword, part)


def _nearer(keyword: str, part: dict[str, Any]) -> int:
    """Return an inclusive bound inside of a far one, so that what follows it follows that, too.

    Some write the ends of a float, or of 64 bits, where they mean none.
    """
    if "inimum" in keyword:
        return -_EXACT + keyword.startswith("exclusive")
    if part.get("type") == "integer" and part[keyword] > _INT64_MAX:
        return _INT64_MAX
    return _EXACT - keyword.startswith("exclusive")


def _limit(keyword: str, part: dict[str, Any]) -> int:
    """Return how far from 0 such a bound can be: doubles beyond are held by some digits alone."""
    if keyword.startswith("exclusive"):
        return _EXACT - 1
    is_int64 = part.get("type") == "integer" and part.get(keyword) == _INT64_MAX
    return _INT64_MAX if keyword == "maximum" and is_int64 else _EXACT


@lru_cache(maxsize=1024)
def _steps(value: float) -> tuple[float, ...]:
    """Return numbers that llguidance reads exactly, and whose common multiples are `value`'s.

    0.07 is none, but what 0.01 and 0.00056 have in common are its multiples: 0.07 divided by two
    numbers without common divisor. Empty: nothing like that was found.
    """
    wanted = Decimal(repr(value))
    if _read(value) == wanted:
        return (value,)
    (whole,) = _aligned([wanted])
    odd = whole // math.gcd(whole, 10 ** whole.bit_length())  # without divisors 2 and 5
    first = wanted / odd
    if _read(float(first)) != first:
        return ()
    for divisor in _DIVISORS:
        other = wanted / divisor
        if _read(float(other)) == other and _can_meet([first, other]):
            return (float(first), float(other)) if _common([first, other]) == wanted else ()
    return ()


def _read(value: float) -> Decimal | None:
    """Return what llguidance takes a number for; None: it refuses it."""
    number = float(value)
    exponent = 0
    while number % 1:
        number *= 10
        exponent += 1
    return None if number > _UINT32_MAX else Decimal(int(number)).scaleb(-exponent)


def _check_meetings(parts: list[Place]) -> None:
    """Refuse steps that may meet in one number, if llguidance's 32 bits are too few for both."""
    steps = [(place, part["multipleOf"]) for place, part in parts if "multipleOf" in part]
    targets = [part["$ref"] for _, part in parts if "$ref" in part]
    if not steps or (len(steps) == 1 and len(targets) == len(set(targets))):
        return
    read = [step for _, value in steps for step in map(_read, _steps(value)) if step is not None]
    if not _can_meet([_common(read)] * 2):
        place, value = steps[-1]
        why = f"is {shorten(value)} and may meet others; all together have too many digits"
        raise refuse(place, "multipleOf", why)


def _check_open_ends(parts: list[Place]) -> None:
    """Refuse `0 < x <= 0.5` and the like: llguidance 1.9.1 lets the 0 through.

    It does so where a bound is excluded, whole, and the nearer one to 0, and where the other one is
    less than 1 away.
    """
    for side, other, sign in (("Minimum", "Maximum", 1), ("Maximum", "Minimum", -1)):
        ends = [sign * end for _, part in parts for end, _ in _ends(part, other)]
        within = {math.floor(end) for end in ends if end % 1}
        for place, part in parts:
            for end, keyword in _ends(part, side):
                is_open = keyword != side.lower() and end % 1 == 0
                if is_open and sign * end >= 0 and sign * end in within:
                    why = (
                        f"is {shorten(end)} and the other bound is less than 1 away; write the "
                        f"first number that may be into '{side.lower()}'"
                    )
                    raise refuse(place, keyword, why)


def _ends(part: dict[str, Any], side: str) -> Iterator[tuple[float, str]]:
    """Yield the bounds of numbers on one side, and the keyword that says which kind it is."""
    if part.get("type") == "integer":
        return
    bound, exclusive = side.lower(), "exclusive" + side
    if bound in part:
        yield part[bound], exclusive if part.get(exclusive) is True else bound
    if not isinstance(part.get(exclusive, True), bool):
        yield part[exclusive], exclusive


def _is_joined(part: dict[str, Any]) -> bool:
    """Return whether several parts of a schema may look at the same number."""
    joined = part.keys() & _JOINED
    is_list = joined <= {"items", "prefixItems", "properties", "additionalProperties"}
    return len(joined) > 1 and not is_list


def _can_meet(steps: Iterable[Decimal]) -> bool:
    """Return whether llguidance can find what two steps have in common: it multiplies them."""
    a, b = _aligned(steps)
    return a * b <= _UINT32_MAX


def _common(steps: list[Decimal]) -> Decimal:
    """Return the least number that is a multiple of all."""
    return math.lcm(*_aligned(steps)) * Decimal(1).scaleb(-_num_decimals(steps))


def _aligned(steps: Iterable[Decimal]) -> list[int]:
    """Return the steps in units of the last decimal of any."""
    steps = list(steps)
    return [int(step.scaleb(_num_decimals(steps))) for step in steps]


def _num_decimals(steps: Iterable[Decimal]) -> int:
    return max(-int(step.normalize().as_tuple().exponent) for step in [*steps, Decimal(1)])
