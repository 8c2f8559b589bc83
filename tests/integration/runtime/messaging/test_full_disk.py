"""A stream whose disk was full, with the real server: it heals by itself and loses nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.servers import nats_server, settings_for
from support.small_disk import SmallDisk

from pagoda.rpc.v1.generate_pb2 import CancelRequest
from pagoda_runtime.errors import BusError, StreamError
from pagoda_runtime.messaging import stream_repair
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SUBJECT = "usage.x"


@pytest.fixture(autouse=True)
def _repair_is_soon_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_repair, "RETRY_SECONDS", 0.05)


async def until_it(bus: Bus, *, takes_messages: bool) -> str:
    """Return what is wrong once that is known, or "" once nothing is."""
    async with asyncio.timeout(60):
        while bool(why := bus._streams._repair.trouble(SUBJECT)) is takes_messages:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return why


@pytest_asyncio.fixture
async def disk_bus(small_disk: SmallDisk) -> AsyncIterator[Bus]:
    with nats_server(small_disk.path) as nats:
        async with Bus.connect(settings_for(nats, home=small_disk.path), name="test") as bus:
            yield bus


async def publish(bus: Bus, name: str) -> None:
    await bus.publish_durable(
        SUBJECT, CancelRequest(request_id=name), message_id=name, timeout_seconds=1
    )


async def publish_until_refused(bus: Bus) -> list[str]:
    stored: list[str] = []
    for number in range(1000):
        try:
            await publish(bus, str(number))
        except BusError:
            return stored
        stored.append(str(number))
    raise AssertionError("the disk never was full")


async def ensure(bus: Bus, *, discard_old: bool = False) -> None:
    await bus.ensure_stream(
        "USAGE",
        ["usage.*"],
        max_bytes=4 << 20,
        discard_old=discard_old,
    )


async def test_a_stream_takes_messages_again_once_its_disk_has_room(
    disk_bus: Bus, small_disk: SmallDisk
) -> None:
    taken = asyncio.Queue[str]()
    await ensure(disk_bus)

    async def take(messages: list[CancelRequest]) -> None:
        for message in messages:
            taken.put_nowait(message.request_id)

    await disk_bus.consume("USAGE", "taker", CancelRequest, take, batch=8)
    await publish(disk_bus, "before")
    small_disk.fill()
    stored = ["before", *await publish_until_refused(disk_bus)]
    assert "NATS does not store" in await until_it(disk_bus, takes_messages=False)
    with pytest.raises(StreamError, match="NATS does not store"):
        await publish(disk_bus, "refused")

    small_disk.make_room()
    await until_it(disk_bus, takes_messages=True)
    await publish(disk_bus, "after")

    async with asyncio.timeout(60):
        assert [await taken.get() for _ in range(len(stored) + 1)] == [*stored, "after"]


async def test_a_stream_is_not_made_anew_before_all_of_it_was_acknowledged(
    disk_bus: Bus, small_disk: SmallDisk
) -> None:
    taken = asyncio.Queue[str]()
    may_take = asyncio.Event()
    await ensure(disk_bus)

    async def take(messages: list[CancelRequest]) -> None:
        await may_take.wait()
        for message in messages:
            taken.put_nowait(message.request_id)

    await disk_bus.consume("USAGE", "taker", CancelRequest, take, batch=8)
    await publish(disk_bus, "before")
    small_disk.fill()
    stored = ["before", *await publish_until_refused(disk_bus)]
    await until_it(disk_bus, takes_messages=False)
    small_disk.make_room()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await until_it(disk_bus, takes_messages=True)
    may_take.set()
    await until_it(disk_bus, takes_messages=True)

    async with asyncio.timeout(60):
        assert [await taken.get() for _ in stored] == stored


async def test_a_stream_that_drops_old_messages_needs_no_acknowledgement(
    disk_bus: Bus, small_disk: SmallDisk
) -> None:
    await ensure(disk_bus, discard_old=True)
    await publish(disk_bus, "before")
    small_disk.fill()
    await publish_until_refused(disk_bus)
    await until_it(disk_bus, takes_messages=False)

    small_disk.make_room()
    await until_it(disk_bus, takes_messages=True)
    await publish(disk_bus, "after")


async def test_a_stream_gets_what_there_is_room_for(disk_bus: Bus) -> None:
    await disk_bus.ensure_stream("USAGE", ["usage.*"], max_bytes=4 << 30, discard_old=False)
    await publish(disk_bus, "a")

    info = await disk_bus._client.jetstream().stream_info("USAGE")
    assert 8 << 20 <= (info.config.max_bytes or 0) <= 32 << 20
