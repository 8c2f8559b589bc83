"""Single headers of a request, read where they lie; the framework makes objects of all of them."""

import math

from starlette.types import Scope

from pagoda_gateway.errors import InvalidRequestError, shorten

TIMEOUT_HEADER = "x-pagoda-timeout"
"""Seconds from a request's arrival to its end; workers take those first that must end sooner."""


def header(scope: Scope, name: bytes) -> str:
    """Return the first header of that name, which is lower case; empty if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""


def timeout_of(scope: Scope, most_seconds: float) -> float:
    """Return the seconds within which a client wants its answer to end, `most_seconds` at most.

    Raises:
        InvalidRequestError: what it sent is no time.
    """
    text = header(scope, TIMEOUT_HEADER.encode())
    if not text:
        return most_seconds
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidRequestError(
            f"'{TIMEOUT_HEADER}' is {shorten(text)}; it must be seconds, more than 0",
            param=TIMEOUT_HEADER,
        )
    return min(seconds, most_seconds)
