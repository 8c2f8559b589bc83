"""`Bus.ask`: sent at once, awaited later or never; what waits is freed. Against a real server."""

import asyncio
import uuid

import pytest
from opentelemetry.context import Context

from pagoda.rpc.v1.generate_pb2 import CancelRequest, GenerateResponse
from pagoda_runtime.errors import NoResponderError, RemoteHandlerError, RequestTimeoutError
from pagoda_runtime.messaging.asked import Asked
from pagoda_runtime.messaging.bus import Bus

pytestmark = pytest.mark.integration


@pytest.fixture
def subject() -> str:
    return f"test.{uuid.uuid4().hex}"


def ask(bus: Bus, subject: str, timeout_seconds: float = 5) -> Asked[GenerateResponse]:
    request = CancelRequest(request_id="r")
    return bus.ask(subject, request, GenerateResponse, timeout_seconds=timeout_seconds)


async def echo(request: CancelRequest, _context: Context) -> GenerateResponse:
    return GenerateResponse(message=request.request_id)


async def fail(_request: CancelRequest, _context: Context) -> GenerateResponse:
    raise ValueError("no")


async def silence(_request: CancelRequest, _context: Context) -> GenerateResponse:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends it")


async def test_an_answer_that_came_before_anybody_waited(bus: Bus, subject: str) -> None:
    await bus.serve(subject, CancelRequest, echo)
    asked = ask(bus, subject)
    await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)

    assert (await asked.answer()).message == "r"
    assert len(bus._connection.replies) == 0


async def test_what_goes_wrong_is_told_to_whoever_waits(bus: Bus, subject: str) -> None:
    with pytest.raises(NoResponderError):
        await ask(bus, subject).answer()
    subscription = await bus.serve(subject, CancelRequest, fail)
    with pytest.raises(RemoteHandlerError, match="ValueError: no"):
        await ask(bus, subject).answer()
    await subscription.unsubscribe()
    await bus.serve(subject, CancelRequest, silence)
    with pytest.raises(RequestTimeoutError):
        await ask(bus, subject, timeout_seconds=0.05).answer()

    assert len(bus._connection.replies) == 0


async def test_what_nobody_wants_any_more_is_freed(bus: Bus, subject: str) -> None:
    await bus.serve(subject, CancelRequest, silence)
    closed, cancelled = ask(bus, subject), ask(bus, subject)
    waiting = asyncio.create_task(cancelled.answer())
    await asyncio.sleep(0)
    assert len(bus._connection.replies) == 2
    closed.close()
    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert len(bus._connection.replies) == 0
