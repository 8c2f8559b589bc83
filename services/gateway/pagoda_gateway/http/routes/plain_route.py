"""Routes that need nothing of the framework but their path: a request comes, its response runs."""

from collections.abc import Iterable

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send


class PlainRoute(APIRoute):
    """Calls its endpoint with the request alone; it raises errors of the gateway and no others.

    The framework would look for parameters, bodies and dependencies that no such route has, and
    pass each message of an answer through what watches over those.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what has another method is refused by the framework."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class PlainRoutes:
    """Finds plain routes by their path; everything else is for the framework to find.

    The framework tries one route after the other, each within several layers.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        """Serve those of `routes` that are plain, and by `app` whatever else comes."""
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, PlainRoute)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        route = None
        if scope["type"] == "http":
            route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        await route.handle(scope, receive, send)
