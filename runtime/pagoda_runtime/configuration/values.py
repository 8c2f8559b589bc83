"""What every setting is held to by its type, beside the bounds of its own.

Knows no setting. Each check raises a ValueError that says what to give, and never the value.
"""

import re
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, SecretStr

MAX_INTEGER = 2**63 - 1  # what databases and JetStream have room for
MAX_SECONDS = 3650 * 86_400  # ten years: sums of times and timers stay within their types

Seconds = Annotated[float, Field(le=MAX_SECONDS)]
"""A duration."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_HOST = re.compile(r"[A-Za-z0-9._:%\[\]-]*")


def check_text(annotation: Any, value: Any) -> None:
    """Raise ValueError for the text of an integer that others would not read as one (`8000.0`)."""
    is_integer = int in (annotation, *get_args(annotation))
    if is_integer and isinstance(value, str) and not _INTEGER.fullmatch(value.strip()):
        raise ValueError("must be an integer, in digits alone, such as 8000")


def checked_value(field: str, value: Any) -> Any:
    """Return a value of `field`, a folder's or file's ~ resolved; raise ValueError if unusable."""
    if isinstance(value, Path):
        return expanded(value)
    if isinstance(value, SecretStr):
        _check_secret(value.get_secret_value(), is_url=field.endswith("url"))
    elif isinstance(value, str):
        _check_printable(value)
        if field.endswith("host") and not _HOST.fullmatch(value):
            raise ValueError("must be a host's name or IP address, such as 127.0.0.1")
    elif isinstance(value, int) and value > MAX_INTEGER:
        raise ValueError(f"must be at most {MAX_INTEGER}")
    return value


def expanded(path: Path) -> Path:
    """Return the path with its ~ resolved.

    Raises:
        ValueError: it is of a user who is not here.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError("no user has this home: give the path without ~") from error


def _check_secret(secret: str, *, is_url: bool) -> None:
    if not secret.isascii() and not is_url:  # a database's may name a folder
        raise ValueError(
            "has characters beyond ASCII, which HTTP headers and URLs do not carry: give letters, "
            "digits and ASCII punctuation"
        )
    _check_printable(secret)


def _check_printable(text: str) -> None:
    if text != text.strip():
        raise ValueError(
            "has white space at an end, which looks like the line ending of a file: remove it"
        )
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed, such as line endings: remove them")
