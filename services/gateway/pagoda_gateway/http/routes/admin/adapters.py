"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, for the administration's key alone."""

import logging

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from pagoda_gateway.admin.bodies import AdapterToLoad, AdapterToUnload
from pagoda_gateway.errors import ModelNotFoundError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.middleware import LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH
from pagoda_gateway.http.openapi import described

logger = logging.getLogger(__name__)


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["administration"])
    bodies = BodyReader.of(gateway)

    def base_of(name: str | None) -> str:
        try:
            return gateway.catalog.get(name or gateway.served_name).name
        except ModelNotFoundError as error:
            raise ModelNotFoundError(str(error), param="base_model") from None

    @router.post(
        LOAD_ADAPTER_PATH,
        response_class=PlainTextResponse,
        openapi_extra=described(None, body=AdapterToLoad),
    )
    async def load_lora_adapter(request: Request) -> PlainTextResponse:
        """Load an adapter on all workers of a model."""
        async with read_body(request, AdapterToLoad, bodies) as body:
            base = base_of(body.base_model)
            await gateway.adapters.load(base, body.lora_name, body.lora_path)
            logger.info("administration: adapter %s:%s is loaded", base, body.lora_name)
            text = f"Success: LoRA adapter '{body.lora_name}' added successfully."
            return PlainTextResponse(text)

    @router.post(
        UNLOAD_ADAPTER_PATH,
        response_class=PlainTextResponse,
        openapi_extra=described(None, body=AdapterToUnload),
    )
    async def unload_lora_adapter(request: Request) -> PlainTextResponse:
        """Take no further requests for an adapter; those that run go on to their ends."""
        async with read_body(request, AdapterToUnload, bodies) as body:
            base = base_of(body.base_model)
            await gateway.adapters.unload(base, body.lora_name)
            logger.info("administration: adapter %s:%s is unloaded", base, body.lora_name)
            text = f"Success: LoRA adapter '{body.lora_name}' removed successfully."
            return PlainTextResponse(text)

    return router
