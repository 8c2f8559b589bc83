"""What is valid under a JSON schema, more exactly than jsonschema says by itself.

Numbers are compared as fractions, not as doubles. Patterns are those of ECMA-262. Formats are those
of the standards, without packages that are not installed here.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Iterator
from datetime import date
from fractions import Fraction
from typing import Any

import jsonschema
from jsonschema.validators import extend, validator_for

_OFFSET = r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?{_OFFSET}"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PATTERNS = {
    "date": r"\d{4}-\d\d-\d\d",
    "time": _TIME,
    "date-time": rf"\d{{4}}-\d\d-\d\d[Tt]{_TIME}",
    "duration": r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)",
    "email": r"[^@\s]+@[^@\s]+",
    "hostname": rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*",
    "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}
_ESCAPES = {
    r"\d": "[0-9]",
    r"\w": "[A-Za-z0-9_]",
    r"\D": "[^0-9]",
    r"\W": "[^A-Za-z0-9_]",
    r"\p{L}": r"[^\W\d_]",
}
_READERS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "date-time": lambda text: date.fromisoformat(text[:10]),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
}


def _checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    for name in _PATTERNS.keys() | _READERS.keys():
        checker.checks(name, raises=ValueError)(_format_check(name))
    return checker


def _format_check(name: str) -> Callable[[object], bool]:
    read = _READERS.get(name, str)
    pattern = re.compile(_PATTERNS.get(name, ".*"), re.ASCII | re.DOTALL)

    def is_valid(value: object) -> bool:
        return not isinstance(value, str) or (read(value), pattern.fullmatch(value))[1] is not None

    return is_valid


_FORMATS = _checker()


def errors(schema: dict[str, Any], output: bytes) -> list[str]:
    """Return what is wrong with an output; it must be JSON at least."""
    exact = json.loads(json.dumps(schema), parse_float=_number)
    kind = extend(validator_for(exact, jsonschema.Draft202012Validator), {"pattern": _pattern})
    judge = kind(exact, format_checker=_FORMATS)
    kind.check_schema(exact, format_checker=None)  # what is accepted must be a schema
    value = json.loads(output, parse_float=_number)
    return [error.message for error in judge.iter_errors(value)]


def _number(text: str) -> Fraction | float:
    exponent = text.lower().partition("e")[2]
    return Fraction(text) if len(exponent) <= 3 else float(text)  # or it has a million digits


def _pattern(
    _: object, pattern: str, value: object, __: object
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(value, str) and not re.search(_of_python(pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _of_python(pattern: str) -> str:
    """Return a pattern of ECMA-262 as Python's; its digits and words are ASCII, its spaces not."""
    parts = []
    is_class = False
    for token in re.findall(r"\\p\{L\}|\\.|\[\^?|.", pattern, re.DOTALL):
        is_class = token.startswith("[") or (is_class and token != "]")
        escape = _ESCAPES.get(token, token)
        parts.append(escape[1:-1] if is_class and token in _ESCAPES else escape)
    return "".join(parts)
