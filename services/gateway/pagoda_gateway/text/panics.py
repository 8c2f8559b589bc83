"""Panics of Rust libraries as errors: PyO3's PanicException is no `Exception`, and ends tasks.

Knows nothing of what was called.
"""

import contextlib
from collections.abc import Iterator

from pagoda_gateway.errors import InvalidRequestError, shorten


def is_panic(error: BaseException) -> bool:
    """Return whether a Rust library panicked: PyO3 offers no class to catch."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def reported_panics(what: str) -> Iterator[None]:
    """Raise InvalidRequestError where `what` panics: it fails for this input, again and again."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise InvalidRequestError(f"{what} fails: {shorten(str(error))}") from None
