"""What `pagoda up` prints. A line that cannot be said is dropped: the stack does not end for it."""

import contextlib
import os
import select
import sys
from typing import TextIO


def say(text: str) -> None:
    """Print a line about the stack to stderr."""
    put(f"pagoda: {text}\n", sys.stderr)


def put(text: str, stream: TextIO | None) -> None:
    """Write text at once, or not at all: nobody reads, the disk is full, the stream is closed."""
    if stream is None:  # closed before Python began
        return
    try:
        if not _has_room(stream):
            return
        stream.write(text)
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            _forget(stream)


def _has_room(stream: TextIO) -> bool:
    """Return whether a line can be written without waiting for whoever reads a pipe."""
    try:
        file = stream.fileno()
    except OSError:  # it is none, but in memory
        return True
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(0))


def _forget(stream: TextIO) -> None:
    """Empty the stream's buffer: Python would try to write it again, with noise as it exits."""
    file = stream.fileno()
    with open(os.devnull, "wb") as nowhere, open(os.dup(file), "wb") as kept:
        os.dup2(nowhere.fileno(), file)
        try:
            stream.flush()
        finally:
            os.dup2(kept.fileno(), file)
