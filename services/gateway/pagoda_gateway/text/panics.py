"""Panics of Rust libraries as errors: PyO3's PanicException is no `Exception`, and ends tasks.

Knows nothing of what was called.
"""

import contextlib
from collections.abc import Iterator

from pagoda_gateway.errors import InvalidRequestError, shorten

_PANIC_MODULE = "pyo3_runtime"


@contextlib.contextmanager
def reported_panics(what: str) -> Iterator[None]:
    """Raise InvalidRequestError where `what` panics: it fails for this input, again and again."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != _PANIC_MODULE:
            raise
        raise InvalidRequestError(f"{what} fails: {shorten(str(error))}") from None
