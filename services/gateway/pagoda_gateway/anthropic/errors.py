"""Errors in Anthropic's shape."""

from typing import Any

from pagoda_gateway.errors import GatewayError

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


def messages_error(error: GatewayError) -> dict[str, Any]:
    """Return the body, or the data of an `error` event."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, other)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
