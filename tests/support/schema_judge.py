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
_SETS = {  # what each is inside of a class
    r"\d": "0-9",
    r"\w": "A-Za-z0-9_",
    r"\s": r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    r"\D": r"\x00-/:-\U0010ffff",
    r"\W": r"\x00-/:-@\[-\^`{-\U0010ffff",
    r"\S": (
        r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
        r"\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
    ),
}
_OUTSIDE = {
    ".": r"[^\n\r\u2028\u2029]",
    "$": r"\Z",
    "(?<": "(?P<",
    "[^]": r"[\s\S]",
    "[]": "(?!)",
    r"\p{L}": r"[^\W\d_]",
}
_TOKEN = re.compile(
    r"\\p\{L\}|\\u\{[0-9A-Fa-f]+\}|\\ud[89ab]..\\ud[c-f]..|\\c[A-Za-z]|\\.|\(\?<(?![=!])"
    r"|\[\^?\]?|.",
    re.DOTALL,
)
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
    exact = json.loads(json.dumps(_with_python_keys(schema)), parse_float=_number)
    kind = extend(validator_for(exact, jsonschema.Draft202012Validator), {"pattern": _pattern})
    judge = kind(exact, format_checker=_FORMATS)
    kind.check_schema(exact, format_checker=None)  # what is accepted must be a schema
    value = json.loads(output, parse_float=_number)
    return [error.message for error in judge.iter_errors(value)]


def _number(text: str) -> Fraction | float | int:
    exponent = text.lower().partition("e")[2]
    if len(exponent) > 3:
        return float(text)  # or it has a million digits
    number = Fraction(text)
    return int(number) if number.denominator == 1 else number  # 2.0 is an integer


def _pattern(
    _: object, pattern: str, value: object, __: object
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(value, str) and not re.search(_of_python(pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _of_python(pattern: str) -> str:
    """Return a pattern of ECMA-262, flag u, as Python's."""
    parts = []
    is_class = False
    for token in _TOKEN.findall(pattern):
        if is_class:
            is_class = token != "]"
            parts.append(_SETS.get(token, _character(token)))
        elif token in _SETS:
            parts.append(f"[{_SETS[token]}]")
        else:
            is_class = token in ("[", "[^")
            parts.append(_OUTSIDE.get(token, _character(token)))
    return "".join(parts)


def _character(token: str) -> str:
    """Return a token, or what Python calls the character that it stands for."""
    if token.startswith(r"\u{"):
        return rf"\U{int(token[3:-1], 16):08x}"
    if len(token) == 12:
        return str(json.loads(f'"{token}"'))
    return rf"\x{ord(token[2]) % 32:02x}" if re.fullmatch(r"\\c[A-Za-z]", token) else token


def _with_python_keys(schema: Any) -> Any:
    """Return a schema whose `patternProperties` are Python's patterns."""
    if isinstance(schema, list):
        return [_with_python_keys(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_python_keys(value) for key, value in schema.items()}
    if isinstance(inner.get("patternProperties"), dict):
        keys = inner["patternProperties"].items()
        inner["patternProperties"] = {_of_python(key): value for key, value in keys}
    return inner
