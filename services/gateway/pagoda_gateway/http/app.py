"""The HTTP application: routes, middleware, and OpenAI-shaped errors for everything."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pagoda_gateway.errors import http_error_body
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.middleware import RequestMiddleware
from pagoda_gateway.http.openapi import DocumentedApp
from pagoda_gateway.http.routes import generation, health, models, receipts, tokens


def make_app(gateway: Gateway) -> FastAPI:
    """Return the application of one gateway."""
    app = DocumentedApp(
        title="Pagoda",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
        },  # one trace per request: ours
    )
    for module in (generation, models, tokens, receipts, health):
        app.include_router(module.make_router(gateway))
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_middleware(RequestMiddleware, authenticator=gateway.authenticator)
    return app


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Translate what the framework raises itself: unknown route, wrong method."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    detail = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return JSONResponse(
        http_error_body(error.status_code, detail),
        status_code=error.status_code,
        headers=dict(error.headers or {}),
    )


async def _on_validation_error(_request: Request, error: Exception) -> JSONResponse:
    """Translate a path or query parameter that the framework refuses."""
    return JSONResponse(http_error_body(400, str(error)[:1000]), status_code=400)
