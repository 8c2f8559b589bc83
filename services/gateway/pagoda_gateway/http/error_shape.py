"""The shape of errors: OpenAI's everywhere but in Anthropic's API."""

from typing import Any

from pydantic import BaseModel
from starlette.types import Scope

from pagoda_gateway.anthropic.answers import MessagesError
from pagoda_gateway.anthropic.errors import messages_error
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.http.request_head import header
from pagoda_gateway.openai.schemas.responses import ErrorAnswer

MESSAGES_PATH = "/v1/messages"
MODELS_PATH = "/v1/models"


def error_body(scope: Scope, error: GatewayError, request_id: str) -> dict[str, Any]:
    """Return an error as who asked expects it; `request_id` as a header says it."""
    return messages_error(error, request_id) if is_anthropics(scope) else error.body()


def error_schema(path: str) -> type[BaseModel]:
    """Return what `error_body` returns for a path, for the OpenAPI document."""
    return MessagesError if _is_below(MESSAGES_PATH, path) else ErrorAnswer


def is_anthropics(scope: Scope) -> bool:
    """Tell whether a request is to Anthropic's API; the models are in both, and a header tells."""
    path = scope["path"]
    if _is_below(MODELS_PATH, path):
        return bool(header(scope, b"anthropic-version"))
    return _is_below(MESSAGES_PATH, path)


def _is_below(parent: str, path: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")
