"""GET /v1/models and /v1/models/{id}."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.openai.schemas.models import ModelCard, ModelList
from pagoda_gateway.pages import list_page
from pagoda_gateway.served_model import ServedModel


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", openapi_extra=described(ModelList))
    async def list_models(request: Request) -> dict[str, Any]:
        """List what workers have announced and the key may use: names, aliases, adapters.

        All of them on one page, whose fields are both OpenAI's and Anthropic's.
        """
        entries, key = gateway.catalog.entries, caller_of(request).key
        cards = [
            _card(id_, model)
            for id_, model in entries.items()
            if key.may_use(id_) or key.may_use(model.full_name)
        ]
        return list_page(cards, has_more=False)

    @router.get("/v1/models/{model_id:path}", openapi_extra=described(ModelCard))
    async def get_model(model_id: str, request: Request) -> dict[str, Any]:
        """Describe one model, by its name or an alias."""
        return _card(model_id, gateway.model_of(caller_of(request).key, model_id))

    return router


def _card(model_id: str, model: ServedModel) -> dict[str, Any]:
    return {
        "id": model_id,
        "object": "model",
        "type": "model",
        "display_name": model_id,
        "created_at": _rfc_3339(model.created_unix_seconds),
        "created": model.created_unix_seconds,
        "owned_by": "pagoda",
        "root": model.name,
        "parent": model.name if model.adapter else None,
        "max_model_len": model.max_model_len,
        "max_input_tokens": model.max_model_len,
        "max_tokens": model.max_model_len,
        "lifecycle": "active",
        "quantization": model.quantization,
        "kv_cache": _kv_cache(model),
    }


def _rfc_3339(unix_seconds: int) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _kv_cache(model: ServedModel) -> dict[str, Any]:
    kv = model.kv
    earlier = kv.block_bytes if kv.window is None else kv.block_bytes_behind_window
    return {
        "dtype": kv.dtype,
        "block_size": model.block_size,
        "block_bytes": kv.block_bytes,
        "bytes_per_token": kv.block_bytes // model.block_size,
        "window": kv.window,
        "bytes_per_token_behind_window": earlier // model.block_size,
    }
