"""The body of a request that generates nothing, and yet takes a slot while it is worked on."""

import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import Body, read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.caller import caller_of


@contextlib.asynccontextmanager
async def admitted_body(
    gateway: Gateway, request: Request, schema: type[Body]
) -> AsyncIterator[Body]:
    """Yield the body, and hold a slot as any other request does.

    Raises:
        GatewayError: it is wrong, or there is no slot.
    """
    tenant = caller_of(request).key.tenant
    gateway.admission.check(tenant)
    async with read_body(request, schema, BodyReader.of(gateway)) as body:
        with gateway.admission.slot(tenant):
            yield body
