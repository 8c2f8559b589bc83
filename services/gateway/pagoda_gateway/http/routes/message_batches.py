"""/v1/messages/batches: Anthropic's way to run requests in the background."""

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from pagoda_gateway.errors import ForbiddenError, InvalidRequestError, UnavailableError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.error_shape import MESSAGES_PATH
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.database_route import DatabaseRoute
from pagoda_gateway.message_batches.objects import message_batch, message_batch_list
from pagoda_gateway.message_batches.schemas import (
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchBody,
    MessageBatchList,
)
from pagoda_gateway.message_batches.store import MessageBatches

PATH = f"{MESSAGES_PATH}/batches"
_MEDIA_TYPE = "application/x-jsonl"
_LINES = {"type": "string", "description": "Lines, each a MessageBatchLine."}
_RESULTS = {"responses": {"200": {"content": {_MEDIA_TYPE: {"schema": _LINES}}}}}
_Id = Annotated[str | None, Query(max_length=64, pattern="^msgbatch_")]


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["messages"], route_class=DatabaseRoute)
    batches = MessageBatches(
        gateway.files,
        gateway.batches,
        gateway.large_bodies,
        max_lines=gateway.settings.batch_max_lines,
        max_line_bytes=gateway.settings.max_body_bytes,
    )

    @router.post(PATH, openapi_extra=described(MessageBatch, body=MessageBatchBody))
    async def create_message_batch(request: Request) -> dict[str, Any]:
        """Take requests."""
        key = caller_of(request).key

        def check_model(name: str) -> None:
            try:
                with contextlib.suppress(UnavailableError):  # of a worker that is to come
                    gateway.model_of(key, name)
            except ForbiddenError as error:
                raise InvalidRequestError(str(error)) from None

        async with admitted_body(gateway, request, MessageBatchBody) as body:
            row = await batches.create(key.tenant, key.api_key_id, body, check_model)
        return message_batch(row, _url(request))

    @router.get(PATH, openapi_extra=described(MessageBatchList))
    async def list_message_batches(
        request: Request,
        after_id: _Id = None,
        before_id: _Id = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> dict[str, Any]:
        """List the tenant's batches, newest first, from an id on or up to one."""
        tenant = caller_of(request).key.tenant
        rows, has_more = await batches.page(tenant, after=after_id, before=before_id, limit=limit)
        return message_batch_list(rows, _url(request), has_more=has_more)

    @router.get(f"{PATH}/{{message_batch_id}}", openapi_extra=described(MessageBatch))
    async def get_message_batch(message_batch_id: str, request: Request) -> dict[str, Any]:
        """Describe one batch."""
        row = await batches.get(caller_of(request).key.tenant, message_batch_id)
        return message_batch(row, _url(request))

    @router.post(f"{PATH}/{{message_batch_id}}/cancel", openapi_extra=described(MessageBatch))
    async def cancel_message_batch(message_batch_id: str, request: Request) -> dict[str, Any]:
        """Begin no further request; those that run end."""
        row = await batches.cancel(caller_of(request).key.tenant, message_batch_id)
        return message_batch(row, _url(request))

    @router.delete(f"{PATH}/{{message_batch_id}}", openapi_extra=described(DeletedMessageBatch))
    async def delete_message_batch(message_batch_id: str, request: Request) -> dict[str, Any]:
        """Delete a batch that has ended, and its results."""
        await batches.delete(caller_of(request).key.tenant, message_batch_id)
        return {"id": message_batch_id, "type": "message_batch_deleted"}

    @router.get(f"{PATH}/{{message_batch_id}}/results", response_model=None, openapi_extra=_RESULTS)
    async def get_message_batch_results(message_batch_id: str, request: Request) -> Response:
        """Return the results of a batch that has ended, in the order of its requests."""
        results = await batches.results(caller_of(request).key.tenant, message_batch_id)
        return StreamingResponse(results, media_type=_MEDIA_TYPE)

    return router


def _url(request: Request) -> str:
    """Return under which URL the client has reached these routes."""
    return f"{str(request.base_url).rstrip('/')}{PATH}"
