"""Whether a process is ready, and the HTTP server that says so: /healthz, /readyz, /metrics."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from pagoda_runtime.telemetry import metrics

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
MAX_HEADER_BYTES = 8192
_REASONS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


class Health:
    """Readiness by component: ready when at least one is known, all are ready, and nobody stops."""

    def __init__(self) -> None:
        self._components: dict[str, tuple[bool, str]] = {}
        self._is_stopping = False

    def set_ready(self, component: str, is_ready: bool, detail: str = "") -> None:
        """Record one component's state; `detail` says why it is not ready."""
        if self._components.get(component) != (is_ready, detail):
            logger.info("%s is %s %s", component, "ready" if is_ready else "not ready", detail)
        self._components[component] = (is_ready, detail)

    def set_stopping(self) -> None:
        """Be not ready from now on."""
        self._is_stopping = True

    @property
    def is_ready(self) -> bool:
        """Whether work may be sent here."""
        states = self._components.values()
        return bool(states) and not self._is_stopping and all(is_ready for is_ready, _ in states)

    def report(self) -> dict[str, Any]:
        """Return what /readyz answers."""
        components = {
            name: {"ready": is_ready, "detail": detail}
            for name, (is_ready, detail) in sorted(self._components.items())
        }
        return {"ready": self.is_ready, "stopping": self._is_stopping, "components": components}


@contextlib.asynccontextmanager
async def health_server(health: Health, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the context ends; yields the bound port (`port` 0: any free one)."""

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, health))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(on_connection, host, port, limit=MAX_HEADER_BYTES)
    bound: int = server.sockets[0].getsockname()[1]
    try:
        yield bound
    finally:
        server.close()


def _response(head: bytes, health: Health) -> bytes:
    words = head.split(b" ", 2)
    path = words[1].split(b"?")[0].decode("latin-1") if len(words) == 3 else ""
    status, content_type, body = _answer(path, health)
    header = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return header.encode() + (b"" if words[0] == b"HEAD" else body)


def _answer(path: str, health: Health) -> tuple[int, str, bytes]:
    if path == "/healthz":
        return 200, "application/json", b'{"alive":true}\n'
    if path == "/readyz":
        body = json.dumps(health.report()).encode() + b"\n"
        return (200 if health.is_ready else 503), "application/json", body
    if path == "/metrics":
        body, content_type = metrics.render()
        return 200, content_type, body
    return 404, "application/json", b'{"error":"known paths: /healthz /readyz /metrics"}\n'
