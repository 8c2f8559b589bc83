"""Around every request: its id, its key, its count, and one shape for every error."""

import logging
import re
import time
from collections.abc import Callable, Sequence

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda_gateway import metrics
from pagoda_gateway.accounts.keys import AdminKey, Authenticator
from pagoda_gateway.errors import GatewayError, InternalError
from pagoda_gateway.http.caller import Caller, authorization_of, key_of
from pagoda_gateway.http.error_shape import error_body, is_anthropics
from pagoda_gateway.http.generation.request_policy import CACHE_HEADER, cache_of
from pagoda_gateway.http.ignored_fields import IGNORED_HEADER, ignored_of
from pagoda_gateway.http.limit_headers import limits_of
from pagoda_gateway.http.request_head import header
from pagoda_gateway.http.wire import is_for_now, send_error
from pagoda_runtime.identity import new_request_id

logger = logging.getLogger(__name__)

_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWN_ID = b"x-pagoda-request-id"
ADMIN_PATH = "/admin"
LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
# Everything else is for clients with a key alone, a route that somebody adds included.
OPEN_PATHS = frozenset(
    {"/healthz", "/readyz", "/health", "/ping", "/version", "/metrics", "/openapi.json"}
)
PROBED_PATHS = OPEN_PATHS | {"/v1/models"}
"""What answers HEAD, too: load balancers ask so. Each answers at once, and shortly."""


class RequestMiddleware:
    """Puts a `Caller` into the scope.

    `x-request-id` of the answer is the client's own if it sent a plain one ([A-Za-z0-9_-]{1,64}),
    else ours. Ours is always in `x-pagoda-request-id`: traces and receipts are found by it, both
    also by the client's (span attribute `pagoda.client_request_id`).
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        admin_key: AdminKey | None = None,
        routes: Sequence[BaseRoute] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Let in whom `authenticator` knows, and to the administration's paths who has its key.

        Ids of requests have the time of `clock`, Unix seconds: accounts are kept as long as their
        ids say. Who is not let in is counted by the one of `routes` that was asked for.
        """
        self._app = app
        self._routes = routes
        self._authenticator = authenticator
        self._admin_key = admin_key
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD" and scope["path"] in PROBED_PATHS:
            scope = {**scope, "method": "GET"}  # the server sends no body
        caller = Caller.within(scope)
        request_id = caller.request_id if caller else new_request_id(self._clock())
        client_id = header(scope, b"x-request-id")
        if client_id and not _CLIENT_ID.fullmatch(client_id):
            client_id = ""
        shown_id = client_id or request_id
        is_line = caller is not None and caller.service_tier == "batch"
        status, is_answer = 0, True

        async def send_named(message: Message) -> None:
            nonlocal status, is_answer
            if message["type"] == "http.response.start":
                status = message["status"]
                # Such a line of a batch waits and is asked again.
                is_answer = not (is_line and is_for_now(status, message.get("headers", ())))
                named = [(b"x-request-id", shown_id.encode()), (_OWN_ID, request_id.encode())]
                if is_anthropics(scope):  # whose SDKs read this one
                    named.append((b"request-id", shown_id.encode()))
                if ignored := ignored_of(scope):
                    named.append((IGNORED_HEADER.encode(), ignored.encode("latin-1")))
                if cached := cache_of(scope):
                    named.append((CACHE_HEADER.encode(), cached.encode("latin-1")))
                for name, value in limits_of(scope).items():
                    named.append((name.encode(), value.encode("latin-1")))
                message["headers"] = [*message.get("headers", ()), *named]  # no route sets these
            await send(message)

        arrived, arrived_seconds = time.time(), time.monotonic()
        try:
            if caller is None:
                key = None
                if self._admin_key is not None and is_administration(scope["path"]):
                    self._admin_key.check(authorization_of(scope))
                elif scope["path"] not in OPEN_PATHS:
                    key = await key_of(scope, self._authenticator)
                Caller(request_id, client_id, key, arrived, arrived_seconds=arrived_seconds).enter(
                    scope
                )
            await self._app(scope, receive, send_named)
        except GatewayError as error:
            if not status:
                await send_error(send_named, error, error_body(scope, error, shown_id))
        except ClientDisconnect:
            logger.debug("request %s: the client left while it sent", request_id)
        except Exception:
            logger.exception("request %s: %s %s", request_id, scope["method"], scope["path"])
            if not status:
                failure = InternalError("internal error; the log has the details")
                await send_error(send_named, failure, error_body(scope, failure, shown_id))
        finally:
            route = scope.get("route")
            if route is None and Caller.within(scope) is None:  # nobody has looked for it yet
                route = self._route_of(scope)
            if is_answer:
                path = getattr(route, "path", "unknown")
                metrics.RESPONSES.labels(path, str(status or 499)).inc()

    def _route_of(self, scope: Scope) -> BaseRoute | None:
        """Return the route of a path, if there is one, whatever its methods are."""
        for route in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                return route
        return None


def is_administration(path: str) -> bool:
    """Tell whether a path is for the administration's key alone."""
    return path.startswith(f"{ADMIN_PATH}/") or path in (LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH)
