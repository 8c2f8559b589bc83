"""What a process needs of its machine to start, and which setting to change where it has none."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pagoda_runtime.errors import StartError


@contextlib.contextmanager
def needed(what: str, remedy: str) -> Iterator[None]:
    """Say in one line what cannot be had, and what to do.

    Args:
        what: cannot be done, such as "cannot listen on 127.0.0.1:8102".
        remedy: what to do, such as "set PAGODA_ROUTER_HEALTH_PORT to a free port".

    Raises:
        StartError: the block raised an OSError, or a name cannot be a host's or a file's.
    """
    try:
        yield
    except (OSError, UnicodeError) as error:
        raise StartError(what, _cause(error), remedy) from error


def needed_folder(folder: Path, variable: str) -> contextlib.AbstractContextManager[None]:
    """Return `needed` for a folder that is made, or written to; `variable` is its setting."""
    return needed(f"cannot use the folder {folder}", f"set {variable} to one that can be written")


def _cause(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return f"no host has such a name ({error})" if "idna" in str(error) else str(error)
    if isinstance(error, socket.gaierror):  # its numbers are not the system's
        return str(error.strerror)
    return os.strerror(error.errno) if error.errno else str(error)
