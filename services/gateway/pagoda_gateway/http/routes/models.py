"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.openai.schemas.models import ModelCard, ModelList
from pagoda_gateway.served_model import ServedModel


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", openapi_extra=described(ModelList))
    async def list_models(request: Request) -> dict[str, Any]:
        """List what a worker has announced and the key may use."""
        model, key = gateway.catalog.model, caller_of(request).key
        return {
            "object": "list",
            "data": [_card(model)] if model and key.may_use(model.name) else [],
        }

    @router.get("/v1/models/{model_id:path}", openapi_extra=described(ModelCard))
    async def get_model(model_id: str, request: Request) -> dict[str, Any]:
        """Describe one model."""
        caller_of(request).key.check_model(model_id)
        return _card(gateway.catalog.get(model_id))

    return router


def _card(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_unix_seconds,
        "owned_by": "pagoda",
        "max_model_len": model.max_model_len,
    }
