"""A stream that somebody deleted: its owners make it again, at once and once."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import datetime

import pytest
import pytest_asyncio
from nats.js.errors import NotFoundError

from pagoda.rpc.v1.generate_pb2 import CancelRequest
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import stream_consumer, stream_repair
from pagoda_runtime.messaging.bus import Bus

pytestmark = pytest.mark.integration

Logged = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def _soon_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_repair, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(stream_consumer, "RETRY_SECONDS", 0.05)


@pytest.fixture
def stream() -> str:
    return f"S{uuid.uuid4().hex[:12]}"


@pytest_asyncio.fixture
async def replica(nats_common: CommonSettings) -> AsyncIterator[Bus]:
    async with Bus.connect(nats_common, name="replica") as bus:
        yield bus


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, stream: str) -> Logged:
    """Finds what was said of the stream with some words in it."""
    return lambda words: [m for m in caplog.messages if stream in m and words in m]


async def own(bus: Bus, stream: str) -> None:
    await bus.ensure_stream(stream, [f"{stream}.*"], max_bytes=1 << 20, discard_old=True)


async def consume(bus: Bus, stream: str, taken: asyncio.Queue[str]) -> None:
    async def take(messages: list[CancelRequest]) -> None:
        for message in messages:
            taken.put_nowait(message.request_id)

    await bus.consume(stream, "d", CancelRequest, take, batch=8)


async def publish(bus: Bus, stream: str, name: str) -> None:
    await bus.publish_durable(
        f"{stream}.x", CancelRequest(request_id=name), message_id=name, timeout_seconds=30
    )


async def until_made(bus: Bus, stream: str) -> datetime | None:
    """Return when the stream was made that is there."""
    jetstream = bus._client.jetstream()
    while True:
        try:
            return (await jetstream.stream_info(stream)).created
        except NotFoundError:
            await asyncio.sleep(0.01)


async def until_settled(*buses: Bus) -> None:
    for bus in buses:
        for watched in bus._streams._repair._streams.values():
            if watched.task is not None:
                await watched.task


async def test_a_reader_that_owns_a_stream_has_it_made_at_once_and_once(
    bus: Bus, replica: Bus, stream: str, logged: Logged
) -> None:
    taken = asyncio.Queue[str]()
    async with asyncio.timeout(30):
        for owner in (bus, replica):
            await own(owner, stream)
            await consume(owner, stream, taken)
        await publish(bus, stream, "before")
        assert await taken.get() == "before"

        await bus._client.jetstream().delete_stream(stream)
        made = await until_made(bus, stream)  # nobody has complained
        await until_settled(bus, replica)
        await publish(bus, stream, "after")
        assert await taken.get() == "after"
        assert await until_made(bus, stream) == made
    assert len(logged("made anew: it was gone")) == 1
    assert logged("it is gone")
    assert not logged("write error")
    assert not logged("disk")


async def test_a_reader_of_anothers_stream_has_its_owner_make_it(
    bus: Bus, replica: Bus, stream: str, logged: Logged
) -> None:
    taken = asyncio.Queue[str]()
    async with asyncio.timeout(30):
        await own(bus, stream)
        replica.watch_stream(stream, [f"{stream}.*"])
        await consume(replica, stream, taken)
        await bus._client.jetstream().delete_stream(stream)
        await until_made(bus, stream)
        await until_settled(bus, replica)
        await publish(bus, stream, "after")
        assert await taken.get() == "after"
    assert len(logged("made anew: it was gone")) == 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_of_several_owners_that_find_a_stream_silent_one_makes_it_anew(
    bus: Bus, replica: Bus, stream: str, logged: Logged, is_there: bool
) -> None:
    async with asyncio.timeout(30):
        await own(bus, stream)
        await own(replica, stream)
        before = await until_made(bus, stream)
        if not is_there:
            await bus._client.jetstream().delete_stream(stream)
        for owner in (bus, replica):
            owner._streams._repair.suspect(f"{stream}.x", is_silent=True)
        await until_settled(bus, replica)
        assert await until_made(bus, stream) != before
    assert len(logged("was made anew")) == 1
