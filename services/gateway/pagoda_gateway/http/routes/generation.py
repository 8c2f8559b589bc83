"""POST /v1/chat/completions and /v1/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.exchange import GenerationExchange


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request) -> Response:
        """Go on with a conversation."""
        return GenerationExchange(gateway, request, "chat.completions")

    @router.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Response:
        """Go on with a text."""
        return GenerationExchange(gateway, request, "completions")

    return router
