"""Who sent a request, and what it is called; the middleware puts it into the scope."""

import time
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Scope

from pagoda_gateway.accounts.keys import ApiKey, Authenticator
from pagoda_gateway.http.request_head import header
from pagoda_gateway.sequences.request import ServiceTier

_SCOPE_NAME = "pagoda.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        request_id: ours (ULID).
        client_request_id: the client's own x-request-id; empty if it sent no usable one.
        api_key: whose key it is; None on routes without one.
        arrived_unix_seconds: when the request came.
        service_tier: "batch" for a line of a batch.
        arrived_seconds: when it came by the monotonic clock, which nobody sets.
    """

    request_id: str
    client_request_id: str
    api_key: ApiKey | None
    arrived_unix_seconds: float
    service_tier: ServiceTier = "default"
    arrived_seconds: float = field(default_factory=time.monotonic)

    @property
    def shown_id(self) -> str:
        """What the client calls the request: by its own id, if it sent one."""
        return self.client_request_id or self.request_id

    @property
    def key(self) -> ApiKey:
        """The key, on a route that needs one."""
        assert self.api_key is not None, "the middleware lets nobody here without a key"
        return self.api_key

    @property
    def tenant(self) -> str:
        """Whose key it is; empty if a route needs none, or the administration's."""
        return self.api_key.tenant if self.api_key else ""

    def enter(self, scope: Scope) -> None:
        """Make the caller known to the request's route."""
        scope[_SCOPE_NAME] = self

    @classmethod
    def within(cls, scope: Scope) -> "Caller | None":
        """Return the caller that is known already: of a request that this process makes itself.

        Nothing that comes over the network has one before the middleware.
        """
        return scope.get(_SCOPE_NAME)


def caller_of(request: Request) -> Caller:
    """Return who sent `request`."""
    caller: Caller = request.scope[_SCOPE_NAME]
    return caller


async def key_of(scope: Scope, authenticator: Authenticator) -> ApiKey:
    """Return the key that a request has in its head, as it is now.

    Raises:
        GatewayError: see `Authenticator.authenticate`.
    """
    address = (scope.get("client") or ("",))[0]
    return await authenticator.authenticate(authorization_of(scope), address=address)


def authorization_of(scope: Scope) -> str | None:
    """Return the Authorization header; Anthropic's clients send the key in one of its own."""
    if authorization := header(scope, b"authorization"):
        return authorization
    key = header(scope, b"x-api-key")
    return f"Bearer {key}" if key else None
