"""What an answer's head says of the limits of its key: x-ratelimit-*, as OpenAI names them."""

from starlette.types import Scope

RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{dimension}"
    for dimension in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)

_SCOPE_NAME = "pagoda.limits"


def note_limits(scope: Scope, headers: dict[str, str]) -> None:
    """Keep the headers of a request's answer."""
    scope[_SCOPE_NAME] = headers


def limits_of(scope: Scope) -> dict[str, str]:
    """Return the headers; none where nothing is limited."""
    headers: dict[str, str] = scope.get(_SCOPE_NAME, {})
    return headers
