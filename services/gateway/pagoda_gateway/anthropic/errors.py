"""Errors in Anthropic's shape."""

from typing import Any

from pagoda_gateway.errors import ContextLengthError, GatewayError, ThreadError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: GatewayError, request_id: str) -> dict[str, Any]:
    """Return the body, or the data of an `error` event; `request_id` as the header says it."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, other)
    said: dict[str, Any] = {"type": kind, "message": _message(error)}
    if isinstance(error, ThreadError):
        said["details"] = error.details
    return {"type": "error", "error": said, "request_id": request_id}


def _message(error: GatewayError) -> str:
    """Return the text; of a context that is too long in Anthropic's words, which clients read."""
    match error:
        case ContextLengthError(num_prompt_tokens=int(num_tokens), num_wanted=0):
            return f"prompt is too long: {num_tokens} tokens > {error.limit} maximum"
        case ContextLengthError(num_prompt_tokens=int(num_tokens), num_wanted=num_wanted):
            return (
                "input length and `max_tokens` exceed context limit: "
                f"{num_tokens} + {num_wanted} > {error.limit}, decrease input length or "
                "`max_tokens` and try again"
            )
        case ContextLengthError():
            return f"prompt is too long: {error}"
    return str(error)
