"""Single headers of a request, read where they lie; the framework makes objects of all of them."""

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str:
    """Return the first header of that name, which is lower case; empty if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""
