"""/v1/batches: the requests in a file, run in the background."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from pagoda_gateway.batches.objects import batch_object, list_object
from pagoda_gateway.batches.schemas import BatchBody, BatchList, BatchObject
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.http.routes.database_route import DatabaseRoute

PATH = "/v1/batches"


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["batches"], route_class=DatabaseRoute)
    batches = gateway.batches

    @router.post(PATH, openapi_extra=described(BatchObject, body=BatchBody))
    async def create_batch(request: Request) -> dict[str, Any]:
        """Take the requests of an uploaded file."""
        key = caller_of(request).key
        async with admitted_body(gateway, request, BatchBody) as body:
            return batch_object(await batches.create(key.tenant, key.api_key_id, body))

    @router.get(PATH, openapi_extra=described(BatchList))
    async def list_batches(
        request: Request,
        after: Annotated[str | None, Query(max_length=64, pattern="^batch_")] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> dict[str, Any]:
        """List the tenant's batches, newest first; `after` is the last id of the page before."""
        tenant = caller_of(request).key.tenant
        rows = await batches.list_batches(tenant, after=after, limit=limit)
        return list_object(rows, limit, batch_object)

    @router.get(f"{PATH}/{{batch_id}}", openapi_extra=described(BatchObject))
    async def get_batch(batch_id: str, request: Request) -> dict[str, Any]:
        """Describe one batch."""
        return batch_object(await batches.get(caller_of(request).key.tenant, batch_id))

    @router.post(f"{PATH}/{{batch_id}}/cancel", openapi_extra=described(BatchObject))
    async def cancel_batch(batch_id: str, request: Request) -> dict[str, Any]:
        """Begin no further request; answers that are there can be read when it is cancelled."""
        return batch_object(await batches.cancel(caller_of(request).key.tenant, batch_id))

    return router
