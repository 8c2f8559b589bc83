"""POST /v1/responses, and what is kept of the answers: OpenAI's Responses API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.generation.handler import GenerationHandler
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.database_route import database_answers
from pagoda_gateway.http.wire import EVENT_STREAM_HEADERS
from pagoda_gateway.responses.answers import (
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    ResponseAnswer,
    ResponseEvent,
)
from pagoda_gateway.responses.input_items import DEFAULT_ITEMS, MAX_ITEMS
from pagoda_gateway.responses.schemas import ResponsesBody
from pagoda_gateway.responses.serializer import ResponseSerializer

PATH = "/v1/responses"


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["responses"])
    handler = GenerationHandler(gateway, gateway.responses)
    keepalive_seconds = gateway.settings.keepalive_seconds

    @router.post(
        PATH,
        response_model=None,
        openapi_extra=described(ResponseAnswer, body=ResponsesBody, event=ResponseEvent),
    )
    async def responses(request: Request) -> Response:
        """Answer items, after those of a kept response if one is named."""
        answer = await handler.handle(request)
        serializer = answer.serializer
        assert isinstance(serializer, ResponseSerializer), "responses are written by nothing else"
        if not serializer.is_background:
            return answer
        tenant = caller_of(request).key.tenant
        work = answer({"type": "http"}, _say_nothing, _drop)
        response = await gateway.responses.run_behind(tenant, serializer, work)
        if serializer.log is None:
            return JSONResponse(response)
        return _streamed(serializer.log.read(-1, keepalive_seconds=keepalive_seconds))

    @router.post(
        f"{PATH}/input_tokens", openapi_extra=described(InputTokenCount, body=ResponsesBody)
    )
    async def count_input_tokens(request: Request) -> dict[str, Any]:
        """Return how many tokens items have as a prompt, after those of a kept response."""
        async with admitted_body(gateway, request, ResponsesBody) as body:
            key = caller_of(request).key
            model = gateway.model_of(key, body.model)
            count = await gateway.responses.count_tokens(body, key.tenant, model)
            return {"object": "response.input_tokens", "input_tokens": count}

    @router.get(
        f"{PATH}/{{response_id}}",
        response_model=None,
        openapi_extra=described(ResponseAnswer, event=ResponseEvent),
    )
    async def get_response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> dict[str, Any] | Response:
        """Return a kept response of the caller's own tenant, or events of one in the background.

        Of one that a gateway made which died: that it has failed, as its account says.
        """
        tenant = caller_of(request).key.tenant
        if starting_after is not None and not stream:
            raise InvalidRequestError(
                f"'starting_after' is {starting_after}, an event's number; it needs stream=true",
                param="starting_after",
            )
        with database_answers(request):
            if not stream:
                return await gateway.responses.find(tenant, response_id)
            after = -1 if starting_after is None else starting_after
            events = await gateway.responses.events(
                tenant, response_id, after, keepalive_seconds=keepalive_seconds
            )
            return _streamed(events)

    @router.delete(f"{PATH}/{{response_id}}", openapi_extra=described(DeletedResponse))
    async def delete_response(response_id: str, request: Request) -> dict[str, Any]:
        """Forget a kept response of the caller's own tenant."""
        await gateway.responses.delete(caller_of(request).key.tenant, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.get(f"{PATH}/{{response_id}}/input_items", openapi_extra=described(InputItemList))
    async def list_input_items(
        response_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_ITEMS)] = DEFAULT_ITEMS,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        """Return what a kept response of the caller's own tenant answers."""
        return await gateway.responses.input_page(
            caller_of(request).key.tenant, response_id, limit=limit, after=after, order=order
        )

    @router.post(f"{PATH}/{{response_id}}/cancel", openapi_extra=described(ResponseAnswer))
    async def cancel_response(response_id: str, request: Request) -> dict[str, Any]:
        """End a response that runs in the background; one that has ended is returned as it is."""
        return await gateway.responses.cancel(caller_of(request).key.tenant, response_id)

    return router


def _streamed(events: AsyncIterator[bytes]) -> StreamingResponse:
    response = StreamingResponse(events)
    response.raw_headers = list(EVENT_STREAM_HEADERS)
    return response


async def _say_nothing() -> Message:
    """Wait as a client that stays, and sends no more."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def _drop(_message: Message) -> None:
    """Take what nobody waits for: it is kept."""
