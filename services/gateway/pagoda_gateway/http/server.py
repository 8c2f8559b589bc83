"""The HTTP server of one gateway and its end: not ready, refuse, drain, abort, exit."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncIterator, Generator, Sequence

import uvicorn
from starlette.types import ASGIApp

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.connection import limited_connections
from pagoda_runtime.errors import StartError
from pagoda_runtime.needed import needed
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

logger = logging.getLogger(__name__)

START_SECONDS = 10.0
STOP_SECONDS = 5.0
BACKLOG = 2048
MAX_CONNECTIONS = 8192
OWN_FILES = 64  # for everything that is no client
MIN_LEAVING, MAX_LEAVING = 64, 1024  # refused connections that have time to read it, by files
DEAD_PEER_MS = 30_000


class HttpServer(uvicorn.Server):
    """Leaves the signals to the service; says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self._exit = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.is_up.set()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own looks ten times a second whether it has come."""
        await self.on_tick(0)
        await self._exit.wait()

    def end_reuse(self) -> None:
        """Have clients connect anew for what they ask next: to another replica, if there is one."""
        self.config.http.is_ending = True  # type: ignore[union-attr]
        for connection in list(self.server_state.connections):
            connection.end_reuse()  # type: ignore[union-attr]

    def exit(self) -> None:
        """End serving."""
        self.should_exit = True
        self._exit.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 takes any free one.

    Raises:
        StartError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit these: the kernel ends one whose other side is gone without a word.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_MS // 1000)
    remedy = (
        "set PAGODA_HTTP_PORT to a free port, PAGODA_GATEWAY_HOST to an address of this machine"
    )
    try:
        with needed(f"cannot listen on {host}:{port}", remedy):
            listener.bind((host, port))
    except StartError:
        listener.close()
        raise
    return listener


@contextlib.asynccontextmanager
async def http_server(
    app: ASGIApp,
    listener: socket.socket,
    *,
    max_connections: int = MAX_CONNECTIONS,
    trusted_proxies: Sequence[str] = (),
) -> AsyncIterator[HttpServer]:
    """Serve `app` until the context ends; then open connections have a few seconds.

    `trusted_proxies`: addresses and networks whose word for a client's address and scheme is taken.
    """
    config = uvicorn.Config(
        app,
        http=limited_connections(*_within_files(max_connections)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(STOP_SECONDS),
    )
    logging.getLogger("uvicorn.error").addFilter(_is_worth_a_line)
    server = HttpServer(config)
    tasks = BackgroundTasks()
    tasks.start(server.serve(sockets=[listener]), name="http server")
    try:
        async with asyncio.timeout(START_SECONDS):
            await server.is_up.wait()
        yield server
    finally:
        server.exit()
        await tasks.close(grace_seconds=2 * STOP_SECONDS)
        listener.close()


def _within_files(max_connections: int) -> tuple[int, int]:
    """Return how many connections can be open with all files that this process may have.

    Beside them, how many more can be refused at a time and have time to read why.
    """
    num_needed = OWN_FILES + max_connections + MAX_LEAVING
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < num_needed:
        # the soft limit is for programs whose select(2) knows 1024 files
        files = num_needed if most == resource.RLIM_INFINITY else most
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    if files == resource.RLIM_INFINITY or num_needed <= files:
        return max_connections, MAX_LEAVING
    room = files - OWN_FILES
    max_leaving = max(MIN_LEAVING, room - max_connections)
    num_served = max(2, min(max_connections, room - max_leaving))
    if num_served < max_connections:
        logger.warning(
            "%d connections need more open files than the limit, %d: %d are served at once, and "
            "%d more refused with time to read it; raise it with ulimit -n",
            max_connections, files, num_served, max_leaving,
        )  # fmt: skip
    return num_served, max_leaving


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Drop what anybody can have written as often as they like; it is counted as an answer."""
    return record.msg != "Invalid HTTP request received."


async def drain(gateway: Gateway) -> None:
    """Let requests in flight finish within the grace, then end the others."""
    gateway.admission.stop()
    if await gateway.admission.drain(gateway.settings.drain_seconds):
        return
    logger.warning("%d requests did not end in time", gateway.admission.num_requests)
    gateway.admission.abort()
    await gateway.admission.drain(STOP_SECONDS)
