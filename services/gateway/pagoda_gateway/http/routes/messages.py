"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagoda_gateway.anthropic.answers import MessageAnswer, MessageEvent, TokenCount
from pagoda_gateway.anthropic.schemas import CountTokensBody, MessagesBody
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.error_shape import MESSAGES_PATH
from pagoda_gateway.http.generation.handler import GenerationHandler
from pagoda_gateway.http.openapi import described


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["messages"])
    handler = GenerationHandler(gateway, gateway.messages)

    @router.post(
        MESSAGES_PATH,
        response_model=None,
        openapi_extra=described(MessageAnswer, body=MessagesBody, event=MessageEvent),
    )
    async def messages(request: Request) -> Response:
        """Go on with a conversation."""
        return await handler.handle(request)

    @router.post(
        f"{MESSAGES_PATH}/count_tokens", openapi_extra=described(TokenCount, body=CountTokensBody)
    )
    async def count_tokens(request: Request) -> dict[str, Any]:
        """Return how many tokens a conversation has as a prompt."""
        async with admitted_body(gateway, request, CountTokensBody) as body:
            model = gateway.model_of(caller_of(request).key, body.model)
            return {"input_tokens": await gateway.messages.count_tokens(body, model)}

    return router
