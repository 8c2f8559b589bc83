"""POST /v1/chat/completions and /v1/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.generation.handler import GenerationHandler
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.plain_route import PlainRoute
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.openai.schemas.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["generation"], route_class=PlainRoute)
    chat = GenerationHandler(gateway, gateway.chat)
    completion = GenerationHandler(gateway, gateway.completions)

    @router.post(
        "/v1/chat/completions",
        response_model=None,
        openapi_extra=described(ChatCompletion, body=ChatBody, event=ChatCompletionChunk),
    )
    async def chat_completions(request: Request) -> Response:
        """Go on with a conversation."""
        return await chat.handle(request)

    @router.post(
        "/v1/completions",
        response_model=None,
        openapi_extra=described(Completion, body=CompletionBody, event=CompletionChunk),
    )
    async def completions(request: Request) -> Response:
        """Go on with a text."""
        return await completion.handle(request)

    return router
