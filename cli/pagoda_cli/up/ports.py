"""Free loopback ports."""

import random
import socket
from collections.abc import Collection

from pagoda_cli.up.errors import PortInUseError, StackError

# Below the range from which the system draws the ports of outgoing connections: one of those could
# take a port between our look and the server's start.
FIRST_PORT, LAST_PORT = 10240, 32767
NUM_TRIES = 1000


def pick_port(taken: Collection[int]) -> int:
    """Return a port that nobody listens on and that is not in `taken`."""
    for _ in range(NUM_TRIES):
        port = random.randint(FIRST_PORT, LAST_PORT)
        if port not in taken and _why_not(port) is None:
            return port
    raise StackError(f"no free port between {FIRST_PORT} and {LAST_PORT}")


def require_free(port: int) -> None:
    """Refuse a port that cannot be listened on.

    Raises:
        PortInUseError: it cannot.
    """
    if (cause := _why_not(port)) is not None:
        raise PortInUseError(port, cause)


def _why_not(port: int) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror
    return None
