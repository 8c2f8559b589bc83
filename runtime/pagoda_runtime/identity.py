"""Names of workers, epochs and requests."""

import functools
import hashlib
import os
import socket
import time
from pathlib import Path

from ulid_transform import bytes_to_ulid

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def new_ulid(unix_seconds: float | None = None) -> str:
    """Return a ULID: 26 characters, sorted by time to the millisecond; nobody can guess it.

    The library's own draws are made to be fast, and can be guessed.

    Args:
        unix_seconds: its time; None: now, by this host's clock.
    """
    seconds = time.time() if unix_seconds is None else unix_seconds
    return bytes_to_ulid(int(1000 * seconds).to_bytes(6, "big") + os.urandom(10))


def new_request_id(unix_seconds: float | None = None) -> str:
    """Return a ULID."""
    return new_ulid(unix_seconds)


def new_worker_id(role: str) -> str:
    """Return a name such as `decode-k3v9w2x8`, unique and one plain subject token."""
    return f"{role}-{new_ulid()[-8:].lower()}"


def new_epoch() -> str:
    """Return an epoch, drawn at each start of a worker; later ones sort after earlier ones."""
    return new_ulid()


@functools.cache
def host_id() -> str:
    """Return a name that processes on one machine (one boot of it) share, containers included."""
    source = _BOOT_ID.read_text() if _BOOT_ID.is_file() else socket.gethostname()
    return hashlib.blake2b(source.strip().encode(), digest_size=8).hexdigest()
