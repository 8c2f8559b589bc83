"""Free loopback ports."""

import errno
import random
import socket
import sys
from collections.abc import Collection

from pagoda_cli.up.errors import PortInUseError, StackError

# Below the range from which the system draws the ports of outgoing connections: one of those could
# take a port between our look and the server's start.
FIRST_PORT, LAST_PORT = 10240, 32767
NUM_TRIES = 1000
LOOPBACK = "127.0.0.1"
_OF_WILDCARDS = {"0.0.0.0": LOOPBACK, "::": "::1"}


class Ports:
    """Draws ports that nobody has, each once; `taken` are never drawn.

    On Linux each stays bound here, without listening, until `close`: a server that allows the reuse
    of addresses, as all of ours do, can listen on it, but another `pagoda up` draws another one,
    even before that server has started or while it starts again.
    """

    def __init__(self, taken: Collection[int] = ()) -> None:
        self._taken = {*taken}
        self._held: list[socket.socket] = []

    def pick(self) -> int:
        """Return a port that was not drawn before.

        Raises:
            StackError: none is free.
        """
        for _ in range(NUM_TRIES):
            port = random.randint(FIRST_PORT, LAST_PORT)
            if port not in self._taken and self._hold(port):
                self._taken.add(port)
                return port
        raise StackError(f"no free port between {FIRST_PORT} and {LAST_PORT}")

    def close(self) -> None:
        """Let others draw them."""
        for held in self._held:
            held.close()
        self._held.clear()

    def _hold(self, port: int) -> bool:
        held = socket.socket()
        try:
            held.bind((LOOPBACK, port))
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRNOTAVAIL:
                raise StackError(
                    f"nothing can listen on {LOOPBACK}, where NATS, Redis and the services do: "
                    "give the loopback interface that address"
                ) from error
            return False
        if sys.platform == "linux":
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.append(held)
        else:
            held.close()
        return True


def pick_port() -> int:
    """Return a port that nobody has now, for a caller who takes it at once."""
    ports = Ports()
    try:
        return ports.pick()
    finally:
        ports.close()


def reachable(host: str) -> str:
    """Return under which name in a URL a server that listens on `host` answers on this machine."""
    host = host.strip("[]")
    host = _OF_WILDCARDS.get(host, host)
    return f"[{host}]" if ":" in host else host


def require_free(port: int, host: str = LOOPBACK) -> None:
    """Refuse a port that cannot be listened on.

    Raises:
        PortInUseError: it cannot.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        return  # no port is to blame: the server will name its host
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise PortInUseError(port, error.strerror or str(error)) from error
