"""The HTTP application: routes, middleware, and one shape of errors for each API."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from pagoda_gateway.accounts.keys import AdminKey
from pagoda_gateway.errors import GatewayError, InvalidRequestError, http_error, joined, shorten
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.error_shape import error_body
from pagoda_gateway.http.generation.request_policy import CACHE_HEADER
from pagoda_gateway.http.generation.streaming import RECEIPT_HEADER
from pagoda_gateway.http.ignored_fields import IGNORED_HEADER
from pagoda_gateway.http.limit_headers import RATE_HEADERS
from pagoda_gateway.http.middleware import RequestMiddleware
from pagoda_gateway.http.openapi import DocumentedApp
from pagoda_gateway.http.routes import (
    batches,
    conversations,
    embeddings,
    files,
    generation,
    health,
    message_batches,
    messages,
    models,
    moderations,
    receipts,
    responses,
    tokens,
)
from pagoda_gateway.http.routes.admin import (
    adapters,
    balances,
    chains,
    keys,
    organisations,
    prefixes,
    prices,
    reconcile,
    tenants,
    tiers,
)
from pagoda_gateway.http.routes.admin import receipts as all_receipts
from pagoda_gateway.http.routes.plain_route import PlainRoutes

EXPOSED_HEADERS = (
    "x-request-id", "x-pagoda-request-id", "request-id", IGNORED_HEADER, CACHE_HEADER,
    RECEIPT_HEADER, "retry-after", "x-should-retry", *RATE_HEADERS,
)  # fmt: skip


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
    routers = [
        module.make_router(gateway)
        for module in (
            generation, embeddings, messages, message_batches, responses, conversations,
            moderations, files, batches, models, tokens, receipts, health,
        )
    ]  # fmt: skip
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes]
    admin_secret = gateway.settings.admin_key.get_secret_value()
    if admin_secret:
        for module in (
            organisations, tenants, keys, tiers, prices, balances, all_receipts, chains,
            prefixes, reconcile, adapters,
        ):  # fmt: skip
            router = module.make_router(gateway)
            app.include_router(router)
            routes += router.routes
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    # Each that is added is outside of those before: who calls is known before any route runs.
    app.add_middleware(PlainRoutes, routes=routes)
    app.add_middleware(
        RequestMiddleware,
        authenticator=gateway.authenticator,
        admin_key=AdminKey(admin_secret) if admin_secret else None,
        routes=routes,
        clock=gateway.now,
    )
    if gateway.settings.cors_origins:
        # Added last, so it is the outermost: browsers ask what they may without a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=gateway.settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return app


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Translate what the framework raises itself: unknown route, wrong method."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    detail = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return _answer(request, http_error(error.status_code, detail), error.headers)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Translate path and query parameters that the framework refuses."""
    assert isinstance(error, RequestValidationError), "registered for nothing else"
    problems = []
    for problem in error.errors():
        name = str(problem["loc"][-1])
        message = f"'{name}': {problem['msg']}, not {shorten(problem['input'])}"
        problems.append(InvalidRequestError(message, param=name))
    return _answer(request, joined(problems))


def _answer(
    request: Request, error: GatewayError, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = error_body(request.scope, error, caller_of(request).shown_id)
    return JSONResponse(body, status_code=error.status, headers=dict(headers or {}))
