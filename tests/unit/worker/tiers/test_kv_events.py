import asyncio
import contextlib
from collections.abc import Callable

from opentelemetry.context import Context

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.block_hash import split_hashes
from pagoda_runtime.errors import StreamError
from pagoda_worker.tiers.kv_events import (
    MAX_HASHES_PER_EVENT,
    SNAPSHOT_PAUSE_SECONDS,
    KvEventPublisher,
)


class Stream:
    def __init__(self) -> None:
        self.events: list[kv_event_pb2.KvEvent] = []
        self.ids: list[str] = []
        self.is_broken = False

    async def publish(self, event: kv_event_pb2.KvEvent, message_id: str) -> None:
        if self.is_broken:
            raise StreamError("KV_EVENTS", "gone")
        self.events.append(event)
        self.ids.append(message_id)

    def held(self) -> set[bytes]:
        held: set[bytes] = set()
        for event in self.events:
            if event.is_snapshot:
                held.clear()
            held.update(split_hashes(event.stored))
            held.difference_update(split_hashes(event.evicted))
        return held


def make(stream: Stream, clock: Callable[[], float] = lambda: 0.0) -> KvEventPublisher:
    return KvEventPublisher(
        stream.publish, worker_id="w", epoch="e", kv_identity=bytes(16), clock=clock
    )


async def ask(publisher: KvEventPublisher, epoch: str = "e") -> None:
    request = kv_event_pb2.KvSnapshotRequest(worker_id="w", epoch=epoch)
    await publisher.on_snapshot_request(request, Context())


def h(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_starts_with_an_empty_snapshot() -> None:
    stream = Stream()
    assert await make(stream).publish_changes()
    assert [e.is_snapshot for e in stream.events] == [True]
    assert stream.ids == ["w:e:1"]
    assert stream.events[0].tier == kv_event_pb2.TIER_DEVICE


async def test_steps_between_two_publications_are_one_event() -> None:
    stream = Stream()
    publisher = make(stream)
    await publisher.publish_changes()
    publisher.add([h(1), h(2)], [])
    publisher.add([h(3)], [h(1)])
    await publisher.publish_changes()

    assert len(stream.events) == 2
    assert set(split_hashes(stream.events[1].stored)) == {h(2), h(3)}
    assert split_hashes(stream.events[1].evicted) == (h(1),)
    assert not stream.events[1].is_snapshot


async def test_block_that_came_back_is_held() -> None:
    stream = Stream()
    publisher = make(stream)
    await publisher.publish_changes()
    publisher.add([h(1)], [])
    publisher.add([], [h(1)])
    publisher.add([h(1)], [])
    await publisher.publish_changes()
    assert stream.held() == {h(1)}


async def test_failure_is_healed_by_a_snapshot() -> None:
    stream = Stream()
    publisher = make(stream)
    await publisher.publish_changes()
    publisher.add([h(1), h(2)], [])
    stream.is_broken = True
    assert not await publisher.publish_changes()
    publisher.add([h(3)], [h(1)])
    stream.is_broken = False
    assert await publisher.publish_changes()

    assert stream.events[-1].is_snapshot
    assert stream.held() == {h(2), h(3)}
    sequences = [event.sequence for event in stream.events]
    assert sequences == sorted(set(sequences))


async def test_large_changes_are_split_and_only_the_first_is_a_snapshot() -> None:
    stream = Stream()
    publisher = make(stream)
    publisher.add([h(i) for i in range(MAX_HASHES_PER_EVENT + 5)], [])
    await publisher.publish_changes()

    assert [event.is_snapshot for event in stream.events] == [True, False]
    assert [event.snapshot_part for event in stream.events] == [1, 2]
    assert [event.num_snapshot_parts for event in stream.events] == [2, 2]
    assert len(stream.held()) == MAX_HASHES_PER_EVENT + 5


async def test_large_changes_after_the_snapshot_are_no_parts_of_one() -> None:
    stream = Stream()
    publisher = make(stream)
    await publisher.publish_changes()
    publisher.add([h(i) for i in range(MAX_HASHES_PER_EVENT + 5)], [])
    await publisher.publish_changes()

    assert [event.snapshot_part for event in stream.events] == [1, 0, 0]


async def test_snapshot_is_published_when_asked_for_but_not_too_often() -> None:
    now, stream = [0.0], Stream()
    publisher = make(stream, lambda: now[0])
    publisher.add([h(1), h(2)], [])
    await publisher.publish_changes()
    for _ in range(3):
        await ask(publisher)
    await publisher.publish_changes()
    assert len(stream.events) == 1
    now[0] = SNAPSHOT_PAUSE_SECONDS
    await publisher.publish_changes()
    await publisher.publish_changes()
    assert [event.is_snapshot for event in stream.events] == [True, True]
    assert stream.events[1].stored == stream.events[0].stored


async def test_another_life_of_the_worker_is_not_asked() -> None:
    now, stream = [0.0], Stream()
    publisher = make(stream, lambda: now[0])
    await publisher.publish_changes()
    now[0] = 100.0
    await ask(publisher, epoch="earlier")
    await publisher.publish_changes()
    assert len(stream.events) == 1


async def test_idle_publisher_answers_a_request() -> None:
    now, stream = [0.0], Stream()
    publisher = make(stream, lambda: now[0])
    is_first, is_second = asyncio.Event(), asyncio.Event()
    publish = stream.publish

    async def note(event: kv_event_pb2.KvEvent, message_id: str) -> None:
        await publish(event, message_id)
        (is_second if is_first.is_set() else is_first).set()

    publisher._publish = note
    task = asyncio.create_task(publisher.run())
    async with asyncio.timeout(60):
        await is_first.wait()
        now[0] = 100.0
        await ask(publisher)
        await is_second.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [event.is_snapshot for event in stream.events] == [True, True]
