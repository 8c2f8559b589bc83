"""Errors of the router. Every message says what, which value, which limit, what to do.

RouterError
├── InvalidRouteRequestError   a request that can never be placed: wrong lengths, no tokens
└── IndexUnavailableError      Redis did not answer in time, or the breaker is open
"""

from pagoda_runtime.errors import RuntimeServiceError


class RouterError(RuntimeServiceError):
    """Root of the router's errors."""


class InvalidRouteRequestError(RouterError):
    """A request that can never be placed."""

    def __init__(self, field: str, value: int, limit: str) -> None:
        self.field, self.value, self.limit = field, value, limit
        super().__init__(f"{field} is {value}, must be {limit}")


class IndexUnavailableError(RouterError):
    """The prefix index cannot be asked now: route without prefix affinity."""
