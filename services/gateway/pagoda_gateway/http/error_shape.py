"""Each path's shape of errors: OpenAI's everywhere but in Anthropic's API."""

from typing import Any

from pydantic import BaseModel

from pagoda_gateway.anthropic.answers import MessagesError
from pagoda_gateway.anthropic.errors import messages_error
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.openai.schemas.responses import ErrorAnswer

MESSAGES_PATH = "/v1/messages"


def error_body(path: str, error: GatewayError, request_id: str) -> dict[str, Any]:
    """Return an error as clients of the path expect it; `request_id` as a header says it."""
    return messages_error(error, request_id) if is_anthropics(path) else error.body()


def error_schema(path: str) -> type[BaseModel]:
    """Return what `error_body` returns, for the OpenAPI document."""
    return MessagesError if is_anthropics(path) else ErrorAnswer


def is_anthropics(path: str) -> bool:
    """Tell whether a path is of Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")
