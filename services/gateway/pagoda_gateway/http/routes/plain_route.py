"""Routes that need nothing of the framework but their path: a request comes, its response runs."""

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send


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
