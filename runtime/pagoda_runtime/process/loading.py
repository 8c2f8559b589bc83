"""Loads what a process keeps, without looking for garbage in it.

By default each 700 new objects have the collector look at the newest, and now and then at all there
are: while modules are loaded, which stay, that is a quarter of the time.
"""

import contextlib
import gc
from collections.abc import Iterator

INTERRUPTED = 130  # what shells say of what Ctrl-C has ended


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import within this what stays to the process's end; nothing of it is looked at ever again."""
    gc.disable()
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    finally:
        gc.freeze()
        gc.enable()
