"""Routes that need no key, with nothing secret in them: health, version, metrics."""

from importlib.metadata import version

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.responses import Response

from pagoda_gateway.gateway import Gateway
from pagoda_runtime.telemetry import metrics


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """Say that the process lives."""
        return {"alive": True}

    @router.get("/readyz", response_model=None)
    @router.get("/health", response_model=None)
    @router.get("/ping", response_model=None)
    async def readyz() -> Response:
        """Say whether requests may be sent here."""
        is_ready = gateway.health.is_ready and gateway.bus.is_connected
        report = {**gateway.health.report(), "ready": is_ready, "bus": gateway.bus.is_connected}
        return JSONResponse(report, status_code=200 if is_ready else 503)

    @router.get("/version")
    async def version_of_gateway() -> dict[str, str]:
        """Return the gateway's version."""
        return {"version": version("pagoda-gateway")}

    @router.get("/metrics", response_model=None)
    async def prometheus() -> Response:
        """Return the Prometheus exposition."""
        body, content_type = metrics.render()
        return Response(body, headers={"content-type": content_type})

    return router
