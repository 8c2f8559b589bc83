"""What is counted of an answer: who waits has none yet."""

from typing import Any

import pytest
from prometheus_client import REGISTRY
from starlette.types import Message, Receive, Scope, Send

from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.http.caller import Caller
from pagoda_gateway.http.middleware import RequestMiddleware
from pagoda_gateway.sequences.request import ServiceTier


async def receive() -> Message:
    return {"type": "http.disconnect"}


async def send(message: Message) -> None:
    pass


async def num_counted(tier: ServiceTier, status: int, headers: list[tuple[bytes, bytes]]) -> float:
    """Return by how much an answer to a caller of this process adds to the count."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})

    def counted() -> float:
        labels = {"route": "unknown", "status": str(status)}
        return REGISTRY.get_sample_value("pagoda_http_responses_total", labels) or 0.0

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/x", "headers": []}
    Caller("r", "", ApiKey("k", "t"), 0.0, tier).enter(scope)
    before = counted()
    authenticator: Any = None
    await RequestMiddleware(app, authenticator)(scope, receive, send)
    return counted() - before


@pytest.mark.parametrize("status", [429, 503])
async def test_a_line_of_a_batch_that_waits_has_no_answer(status: int) -> None:
    assert await num_counted("batch", status, [(b"retry-after", b"1")]) == 0


@pytest.mark.parametrize(
    ("tier", "status", "headers"),
    [
        ("default", 429, [(b"retry-after", b"1")]),
        ("batch", 429, []),
        ("batch", 200, []),
    ],
)
async def test_an_answer_for_good_is_counted(
    tier: ServiceTier, status: int, headers: list[tuple[bytes, bytes]]
) -> None:
    assert await num_counted(tier, status, headers) == 1
