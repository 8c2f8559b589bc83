import asyncio
import contextlib
import math
from collections.abc import Callable

import pytest
from opentelemetry.context import Context

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.block_hash import split_hashes
from pagoda_runtime.errors import StreamError
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.kv_events import (
    MAX_HASHES,
    SNAPSHOT_PAUSE_SECONDS,
    KvEventPublisher,
    TierBlocks,
)

DEVICE = kv_event_pb2.TIER_DEVICE


class Stream(Bus):
    """Stores nothing but what the test looks at."""

    def __init__(self) -> None:
        self.events: list[kv_event_pb2.KvEvent] = []
        self.ids: list[str] = []
        self.is_broken = False
        self.is_stored = asyncio.Event()

    async def publish_durable(  # type: ignore[override]
        self, subject: str, message: kv_event_pb2.KvEvent, *, message_id: str, **_: object
    ) -> None:
        assert subject == "pagoda.v1.kv_events.w"
        if self.is_broken:
            raise StreamError("KV_EVENTS", "gone")
        self.events.append(message)
        self.ids.append(message_id)
        self.is_stored.set()

    def held(self) -> set[bytes]:
        held: set[bytes] = set()
        for event in self.events:
            if event.is_snapshot:
                held.clear()
            held.update(split_hashes(event.stored))
            held.difference_update(split_hashes(event.evicted))
        return held


class Blocks:
    """Holds blocks; forgets what changed if told to."""

    def __init__(self) -> None:
        self._held: set[bytes] = set()
        self._stored: list[bytes] = []
        self._evicted: list[bytes] = []
        self.has_overflowed = False

    def add(self, stored: list[bytes], evicted: list[bytes] | None = None) -> None:
        self._stored += stored
        self._evicted += evicted or []
        self._held.update(stored)
        self._held.difference_update(evicted or [])

    def take_changes(self) -> list[TierBlocks] | None:
        changes = TierBlocks(DEVICE, self._stored, self._evicted)
        self._stored, self._evicted = [], []
        is_lost, self.has_overflowed = self.has_overflowed, False
        return None if is_lost else [changes]

    async def held(self) -> list[TierBlocks]:
        return [TierBlocks(DEVICE, sorted(self._held))]


def make(
    stream: Stream,
    blocks: Blocks | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    snapshot_interval_seconds: float = math.inf,
) -> KvEventPublisher:
    return KvEventPublisher(
        stream,
        blocks or Blocks(),
        worker_id="w",
        epoch="e",
        interval_seconds=0.0,
        kv_identity=bytes(16),
        snapshot_interval_seconds=snapshot_interval_seconds,
        clock=clock,
    )


async def ask(publisher: KvEventPublisher, epoch: str = "e") -> None:
    request = kv_event_pb2.KvSnapshotRequest(worker_id="w", epoch=epoch)
    await publisher.on_snapshot_request(request, Context())


def h(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_starts_with_an_empty_snapshot() -> None:
    stream = Stream()
    await make(stream).publish_once()
    assert [e.is_snapshot for e in stream.events] == [True]
    assert stream.ids == ["w:e:1"]
    assert stream.events[0].tier == DEVICE
    assert stream.events[0].kv_identity == bytes(16)


async def test_changes_are_one_event_and_no_changes_none() -> None:
    stream, blocks = Stream(), Blocks()
    publisher = make(stream, blocks)
    await publisher.publish_once()
    blocks.add([h(2), h(3)], [h(1)])
    await publisher.publish_once()
    await publisher.publish_once()

    assert len(stream.events) == 2
    assert split_hashes(stream.events[1].stored) == (h(2), h(3))
    assert split_hashes(stream.events[1].evicted) == (h(1),)
    assert not stream.events[1].is_snapshot


async def test_failure_is_healed_by_a_snapshot() -> None:
    stream, blocks = Stream(), Blocks()
    publisher = make(stream, blocks)
    await publisher.publish_once()
    blocks.add([h(1), h(2)])
    stream.is_broken = True
    with pytest.raises(StreamError):
        await publisher.publish_once()
    blocks.add([h(3)], [h(1)])
    stream.is_broken = False
    await publisher.publish_once()

    assert stream.events[-1].is_snapshot
    assert stream.held() == {h(2), h(3)}
    sequences = [event.sequence for event in stream.events]
    assert sequences == sorted(set(sequences))


async def test_changes_beyond_what_is_remembered_are_a_snapshot() -> None:
    stream, blocks = Stream(), Blocks()
    publisher = make(stream, blocks)
    await publisher.publish_once()
    blocks.add([h(1)])
    blocks.has_overflowed = True
    await publisher.publish_once()
    assert [event.is_snapshot for event in stream.events] == [True, True]
    assert stream.held() == {h(1)}


async def test_large_changes_are_split_and_only_the_first_is_a_snapshot() -> None:
    stream, blocks = Stream(), Blocks()
    blocks.add([h(i) for i in range(MAX_HASHES + 5)])
    await make(stream, blocks).publish_once()

    assert [event.is_snapshot for event in stream.events] == [True, False]
    assert [event.snapshot_part for event in stream.events] == [1, 2]
    assert [event.num_snapshot_parts for event in stream.events] == [2, 2]
    assert len(stream.held()) == MAX_HASHES + 5


async def test_large_changes_after_the_snapshot_are_no_parts_of_one() -> None:
    stream, blocks = Stream(), Blocks()
    publisher = make(stream, blocks)
    await publisher.publish_once()
    blocks.add([h(i) for i in range(MAX_HASHES + 5)])
    await publisher.publish_once()

    assert [event.snapshot_part for event in stream.events] == [1, 0, 0]


async def test_snapshot_is_published_when_asked_for_but_not_too_often() -> None:
    now, stream, blocks = [0.0], Stream(), Blocks()
    publisher = make(stream, blocks, lambda: now[0])
    blocks.add([h(1), h(2)])
    await publisher.publish_once()
    for _ in range(3):
        await ask(publisher)
    await publisher.publish_once()
    assert len(stream.events) == 1
    now[0] = SNAPSHOT_PAUSE_SECONDS
    await publisher.publish_once()
    await publisher.publish_once()
    assert [event.is_snapshot for event in stream.events] == [True, True]
    assert stream.events[1].stored == stream.events[0].stored


async def test_who_asks_while_a_snapshot_is_published_gets_another() -> None:
    now, stream, blocks = [0.0], Stream(), Blocks()
    publisher = make(stream, blocks, lambda: now[0])
    held = blocks.held

    async def asked_meanwhile() -> list[TierBlocks]:
        await ask(publisher)
        return await held()

    blocks.held = asked_meanwhile  # type: ignore[method-assign]
    await publisher.publish_once()
    blocks.held = held  # type: ignore[method-assign]
    await publisher.publish_once()
    assert len(stream.events) == 1
    now[0] = SNAPSHOT_PAUSE_SECONDS
    await publisher.publish_once()
    assert len(stream.events) == 2


async def test_snapshots_come_at_intervals() -> None:
    now, stream = [0.0], Stream()
    publisher = make(stream, clock=lambda: now[0], snapshot_interval_seconds=60.0)
    for now[0] in (0.0, 59.0, 60.0, 119.0, 120.0):
        await publisher.publish_once()
    assert [event.is_snapshot for event in stream.events] == [True, True, True]


async def test_another_life_of_the_worker_is_not_asked() -> None:
    now, stream = [0.0], Stream()
    publisher = make(stream, clock=lambda: now[0])
    await publisher.publish_once()
    now[0] = 100.0
    await ask(publisher, epoch="earlier")
    await publisher.publish_once()
    assert len(stream.events) == 1


async def test_idle_publisher_answers_a_request() -> None:
    now, stream = [0.0], Stream()
    publisher = make(stream, clock=lambda: now[0])
    task = asyncio.create_task(publisher.run())
    async with asyncio.timeout(60):
        await stream.is_stored.wait()
        stream.is_stored.clear()
        now[0] = 100.0
        await ask(publisher)
        await stream.is_stored.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [event.is_snapshot for event in stream.events] == [True, True]
