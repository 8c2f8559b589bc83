"""Routes that need no key, with nothing secret in them: health, version, metrics."""

import asyncio
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response

from pagoda_gateway.gateway import Gateway
from pagoda_runtime.telemetry import metrics

_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "No requests can be served now",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["health"])
    exposition: tuple[bytes, str] | None = None

    def forget() -> None:
        nonlocal exposition
        exposition = None

    @router.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """Say that the process lives."""
        return {"alive": True}

    @router.get("/readyz", response_model=None, responses=_NOT_READY)
    @router.get("/health", response_model=None, responses=_NOT_READY)
    @router.get("/ping", response_model=None, responses=_NOT_READY)
    async def readyz() -> Response:
        """Say whether requests may be sent here."""
        report = gateway.health.report()
        is_connected = gateway.bus.is_connected
        is_ready = report["ready"] and is_connected
        report |= {"ready": is_ready, "bus": is_connected}
        return JSONResponse(report, status_code=200 if is_ready else 503)

    @router.get("/version")
    async def version_of_gateway() -> dict[str, str]:
        """Return the gateway's version."""
        return {"version": version("pagoda-gateway")}

    @router.get("/metrics", response_model=None, response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Return the Prometheus exposition."""
        nonlocal exposition
        if exposition is None:
            exposition = metrics.render()  # for all who ask in this turn of the event loop
            asyncio.get_running_loop().call_soon(forget)
        body, content_type = exposition
        return Response(body, headers={"content-type": content_type})

    return router
