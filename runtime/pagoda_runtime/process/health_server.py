"""The HTTP server of a process's /healthz, /readyz and /metrics.

On the process's own event loop, so that metrics and readiness are read between two of its steps.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from aiohttp import web

from pagoda_runtime.needed import needed
from pagoda_runtime.process.health import Health
from pagoda_runtime.telemetry import metrics

CONNECTION_SECONDS = 5.0  # from connect to close: aiohttp waits for ever for a first request
CLOSE_SECONDS = 0.5


@contextlib.asynccontextmanager
async def health_server(health: Health, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the context ends; yields the bound port (`port` 0: any free one).

    Raises:
        StartError: nobody can listen there, or somebody does.
    """
    loop = asyncio.get_running_loop()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = _answer(request.path, health)
        response.force_close()
        return response

    server = web.Server(answer, access_log=None)

    def connect() -> asyncio.Protocol:
        connection = server()
        loop.call_later(CONNECTION_SECONDS, connection.force_close)
        return connection

    what = f"cannot listen on {host}:{port} for /healthz, /readyz and /metrics"
    remedy = (
        "set the process's ..._HEALTH_PORT to a free port, 0 to any, and its ..._HEALTH_HOST to an "
        "address of this machine"
    )
    with needed(what, remedy):
        listener = await loop.create_server(connect, host, port)
    bound: int = listener.sockets[0].getsockname()[1]
    try:
        yield bound
    finally:
        listener.close()
        await server.shutdown(CLOSE_SECONDS)


def _answer(path: str, health: Health) -> web.Response:
    if path == "/healthz":
        return _json(200, b'{"alive":true}\n')
    if path == "/readyz":
        report = health.report()
        return _json(200 if report["ready"] else 503, json.dumps(report).encode() + b"\n")
    if path == "/metrics":
        body, content_type = metrics.render()
        return web.Response(body=body, headers={"Content-Type": content_type})
    return _json(404, b'{"error":"known paths: /healthz /readyz /metrics"}\n')


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": "application/json"})
