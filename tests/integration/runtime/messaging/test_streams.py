import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from pagoda.rpc.v1.generate_pb2 import CancelRequest
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import MessageContentError, RequestTimeoutError, StreamError
from pagoda_runtime.messaging import stream_consumer
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.streams import ConsumerProgress
from pagoda_runtime.messaging.subscription import Subscription

pytestmark = pytest.mark.integration


class Taker:
    """A handler that keeps what it is given and lets tests wait for it."""

    def __init__(self, num_failures: int = 0) -> None:
        self.batches: list[list[str]] = []
        self.num_failures = num_failures
        self.failed: list[list[str]] = []
        self._changed = asyncio.Condition()

    @property
    def ids(self) -> list[str]:
        return [request_id for batch in self.batches for request_id in batch]

    async def __call__(self, messages: list[CancelRequest]) -> None:
        if self.num_failures:
            self.num_failures -= 1
            self.failed.append([message.request_id for message in messages])
            raise ValueError("not yet")
        async with self._changed:
            self.batches.append([message.request_id for message in messages])
            self._changed.notify_all()

    async def wait_for(self, num_messages: int) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: len(self.ids) >= num_messages)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long consumers would have waited after failures; they do not wait."""
    waited: list[float] = []

    def next_wait(seconds: float) -> float:
        waited.append(seconds)
        return 0.0

    monkeypatch.setattr(stream_consumer, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(stream_consumer, "MAX_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(stream_consumer, "retry_delay", next_wait)
    return waited


@pytest.fixture
def stream() -> str:
    return f"S{uuid.uuid4().hex[:12]}"


async def make_stream(bus: Bus, stream: str, *, max_bytes: int = 1 << 20) -> None:
    await bus.ensure_stream(stream, [f"{stream}.*"], max_bytes=max_bytes, discard_old=True)


async def fill(bus: Bus, stream: str, num_messages: int, first: int = 0) -> None:
    for i in range(first, first + num_messages):
        await bus.publish_durable(
            f"{stream}.x", CancelRequest(request_id=str(i)), message_id=str(i), timeout_seconds=60
        )


async def test_ensure_is_idempotent_and_updates_limits(bus: Bus, stream: str) -> None:
    await make_stream(bus, stream)
    await make_stream(bus, stream)
    await make_stream(bus, stream, max_bytes=1 << 21)
    await fill(bus, stream, 1)


async def test_streams_with_the_same_subject_are_refused(bus: Bus, stream: str) -> None:
    await make_stream(bus, stream)

    with pytest.raises(StreamError, match="overlap"):
        await bus.ensure_stream(
            f"{stream}B",
            [f"{stream}.*"],
            max_bytes=1 << 20,
            discard_old=False,
        )


async def test_a_message_id_is_stored_once(bus: Bus, stream: str) -> None:
    taker = Taker()
    await make_stream(bus, stream)
    for request_id in ("a", "a", "b"):
        await bus.publish_durable(
            f"{stream}.x",
            CancelRequest(request_id=request_id),
            message_id=request_id,
            timeout_seconds=60,
        )
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(2)

    assert taker.ids == ["a", "b"]


async def test_publishing_without_a_stream_times_out(bus: Bus, stream: str) -> None:
    with pytest.raises(RequestTimeoutError):
        await bus.publish_durable(
            f"{stream}.x", CancelRequest(), message_id="a", timeout_seconds=0.2
        )


async def test_a_full_stream_that_keeps_old_messages_refuses(bus: Bus, stream: str) -> None:
    await bus.ensure_stream(stream, [f"{stream}.*"], max_bytes=1024, discard_old=False)

    await fill(bus, stream, 5)
    with pytest.raises(StreamError, match="maximum bytes"):
        await fill(bus, stream, 100, first=5)


async def make_refusing_stream(bus: Bus, stream: str, *, max_bytes: int) -> None:
    await bus.ensure_stream(stream, [f"{stream}.*"], max_bytes=max_bytes, discard_old=False)


async def fill_until_refused(bus: Bus, stream: str) -> int:
    for number in range(1000):
        try:
            await fill(bus, stream, 1, first=number)
        except StreamError:
            return number
    raise AssertionError("the stream never filled up")


async def test_a_full_stream_takes_new_messages_once_the_old_ones_are_acknowledged(
    bus: Bus, stream: str
) -> None:
    await make_refusing_stream(bus, stream, max_bytes=1024)
    num_stored = await fill_until_refused(bus, stream)
    taker = Taker()
    await bus.consume(stream, "d", CancelRequest, taker, batch=10, trim_seconds=0.01)

    async with asyncio.timeout(60):
        for number in range(num_stored, 20 * num_stored):
            while True:
                try:
                    await fill(bus, stream, 1, first=number)
                    break
                except StreamError:  # full until the next trim
                    await asyncio.sleep(0)
    await taker.wait_for(20 * num_stored)

    assert sorted(map(int, taker.ids)) == list(range(20 * num_stored))


async def test_trimming_keeps_what_is_not_acknowledged(
    bus: Bus, nats_common: CommonSettings, stream: str
) -> None:
    """A replica ends between its handler and the acknowledgement while others go on."""
    hanging, taker = asyncio.Event(), Taker()

    async def hang(_messages: list[CancelRequest]) -> None:
        hanging.set()
        await asyncio.Event().wait()

    await make_stream(bus, stream)
    await fill(bus, stream, 6)
    async with Bus.connect(nats_common, name="replica") as replica, asyncio.timeout(60):
        stuck = await replica.consume(stream, "d", CancelRequest, hang, batch=2)
        await hanging.wait()
        await bus.consume(stream, "d", CancelRequest, taker, batch=10, trim_seconds=0.01)
        await taker.wait_for(4)
        await trimmed_to(bus, stream, 2 + 4)
        await stuck.unsubscribe()
        await taker.wait_for(6)
        await trimmed_to(bus, stream, 0)

    assert sorted(taker.ids) == ["0", "1", "2", "3", "4", "5"]


async def trimmed_to(bus: Bus, stream: str, num_messages: int) -> None:
    """Return once the stream has this many messages and a trim would not change that.

    What was handled is acknowledged a moment later: until then there are more.
    """
    jetstream = bus._client.jetstream()
    while True:
        state = (await jetstream.stream_info(stream)).state
        info = await jetstream.consumer_info(stream, "d")
        assert state.messages >= num_messages
        is_trimmed = info.ack_floor.stream_seq + 1 == state.first_seq
        if is_trimmed and state.messages == num_messages:
            return


async def test_batches_are_bounded(bus: Bus, stream: str) -> None:
    taker = Taker()
    await make_stream(bus, stream)
    await fill(bus, stream, 30)
    await bus.consume(stream, "d", CancelRequest, taker, batch=7)
    await taker.wait_for(30)

    assert taker.ids == [str(i) for i in range(30)]
    assert max(len(batch) for batch in taker.batches) <= 7


async def test_a_new_message_is_handed_on_at_once(
    bus: Bus, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_consumer, "SILENCE_SECONDS", 600.0)  # nobody asks a second time
    monkeypatch.setattr(stream_consumer, "PULL_SECONDS", 600.0)
    taker = Taker()
    await make_stream(bus, stream)
    await bus.consume(stream, "d", CancelRequest, taker, batch=100)
    await fill(bus, stream, 1)
    await taker.wait_for(1)


@pytest.mark.slow
async def test_a_failed_batch_comes_again(bus: Bus, stream: str) -> None:
    taker = Taker(num_failures=1)
    await make_stream(bus, stream)
    await fill(bus, stream, 3)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(3)

    assert sorted(taker.ids) == ["0", "1", "2"]


async def test_a_handler_that_goes_on_failing_is_asked_less_and_less_often(
    bus: Bus, stream: str, waits: list[float]
) -> None:
    taker = Taker(num_failures=7)
    await make_stream(bus, stream)
    await fill(bus, stream, 30)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(30)

    assert waits == [0.001, 0.002, 0.004, 0.008, 0.01, 0.01, 0.01]


async def test_what_waited_for_a_handler_is_taken_once_each_and_together_again(
    bus: Bus, stream: str, waits: list[float]
) -> None:
    taker = Taker(num_failures=12)
    await make_stream(bus, stream)
    await fill(bus, stream, 100)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(100)

    assert len(waits) == 12
    assert sorted(map(int, taker.ids)) == list(range(100))
    assert [len(batch) for batch in taker.failed[1:]] == [1] * 11
    assert max(len(batch) for batch in taker.batches) > 1


async def test_a_handler_that_goes_on_failing_is_said_once_and_when_it_works_again(
    bus: Bus, stream: str, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, stream_consumer.__name__)
    taker = Taker(num_failures=20)
    await make_stream(bus, stream)
    await fill(bus, stream, 30)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(30)

    begun, ended = (record for record in caplog.records if "handler" in record.message)
    assert begun.exc_info
    assert "30 messages wait" in begun.message
    assert "works again" in ended.message


async def test_a_message_that_always_fails_keeps_no_other_waiting(
    bus: Bus, stream: str, waits: list[float]
) -> None:
    taker = Taker()

    async def handler(messages: list[CancelRequest]) -> None:
        if any(message.request_id == "3" for message in messages):
            raise ValueError("never")
        await taker(messages)

    await make_stream(bus, stream)
    await fill(bus, stream, 30)
    await bus.consume(stream, "d", CancelRequest, handler, batch=10)
    await taker.wait_for(29)

    assert set(taker.ids) == set(map(str, range(30))) - {"3"}


async def test_a_message_that_is_refused_for_its_content_is_dropped_and_no_other(
    bus: Bus, stream: str, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    taker, refused = Taker(), list[list[str]]()

    async def handler(messages: list[CancelRequest]) -> None:
        ids = [message.request_id for message in messages]
        if "3" in ids:
            refused.append(ids)
            raise MessageContentError("3 has a value")
        await taker(messages)

    await make_stream(bus, stream)
    await fill(bus, stream, 30)
    await bus.consume(stream, "d", CancelRequest, handler, batch=10)
    await taker.wait_for(29)
    async with asyncio.timeout(60):
        while (await bus.consumer_progress(stream, "d")).num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert set(taker.ids) == set(map(str, range(30))) - {"3"}
    assert refused.count(["3"]) <= stream_consumer.CONTENT_TRIES
    assert [r.message for r in caplog.records if "dropped message 4" in r.message]
    assert not waits  # nobody waited for it


async def test_tries_while_the_handler_fails_for_its_own_reasons_are_none(
    bus: Bus, stream: str, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    num_calls = 0

    async def handler(_messages: list[CancelRequest]) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls <= 5:
            raise ValueError("an outage")
        raise MessageContentError("0 has a value")

    await make_stream(bus, stream)
    await fill(bus, stream, 1)
    await bus.consume(stream, "d", CancelRequest, handler, batch=10)
    async with asyncio.timeout(60):
        while (await bus.consumer_progress(stream, "d")).num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert num_calls == 5 + stream_consumer.CONTENT_TRIES
    assert "dropped message 1, of 3 tries" in caplog.text


@pytest_asyncio.fixture
async def failing(
    nats_common: CommonSettings, stream: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[int], Awaitable[Subscription]]]:
    """Starts a replica that takes a batch, fails, and then waits for an hour."""
    monkeypatch.setattr(stream_consumer, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(stream_consumer, "retry_delay", lambda _: 3600.0)
    has_failed = asyncio.Event()

    async def fail(_messages: list[CancelRequest]) -> None:
        has_failed.set()
        raise ValueError("never")

    async with Bus.connect(nats_common, name="replica") as replica:

        async def start(batch: int) -> Subscription:
            subscription = await replica.consume(stream, "d", CancelRequest, fail, batch=batch)
            await has_failed.wait()
            return subscription

        yield start


async def test_who_waits_after_a_failure_holds_nothing_back_and_ends_at_once(
    bus: Bus, stream: str, failing: Callable[[int], Awaitable[Subscription]]
) -> None:
    taker = Taker()
    await make_stream(bus, stream)
    await fill(bus, stream, 20)
    async with asyncio.timeout(60):
        waiting = await failing(2)
        await bus.consume(stream, "d", CancelRequest, taker, batch=10)
        await taker.wait_for(20)
        await waiting.unsubscribe()

    assert set(taker.ids) == set(map(str, range(20)))


async def test_what_comes_while_one_waits_goes_to_another(
    bus: Bus, stream: str, failing: Callable[[int], Awaitable[Subscription]]
) -> None:
    taker = Taker()
    await make_stream(bus, stream)
    await fill(bus, stream, 1)
    await failing(10)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(1)  # so the other one has given back what it had
    await fill(bus, stream, 20)  # the first of them a second time
    async with asyncio.timeout(stream_consumer.ACK_WAIT_SECONDS / 2):
        await taker.wait_for(20)


async def test_an_undecodable_message_is_dropped(bus: Bus, stream: str) -> None:
    taker = Taker()
    await make_stream(bus, stream)
    await bus._client.publish(f"{stream}.x", b"\xff\xff\xff")
    await fill(bus, stream, 1)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(1)

    assert taker.ids == ["0"]


async def test_a_stored_message_with_a_status_holds_nothing_back(bus: Bus, stream: str) -> None:
    """Whoever may publish there could have sent it."""
    taker = Taker()
    await make_stream(bus, stream)
    await bus._client.publish(f"{stream}.x", b"", headers={"Status": "404"})
    await fill(bus, stream, 1)
    await bus.consume(stream, "d", CancelRequest, taker, batch=10, in_order=True)
    await taker.wait_for(2)

    assert taker.ids == ["", "0"]


async def test_what_was_cancelled_comes_again_elsewhere(bus: Bus, stream: str) -> None:
    started, taker = asyncio.Event(), Taker()

    async def hang(_messages: list[CancelRequest]) -> None:
        started.set()
        await asyncio.Event().wait()

    await make_stream(bus, stream)
    await fill(bus, stream, 3)
    subscription = await bus.consume(stream, "d", CancelRequest, hang, batch=2)
    async with asyncio.timeout(60):
        await started.wait()
        await subscription.unsubscribe()
    await bus.consume(stream, "d", CancelRequest, taker, batch=10)
    await taker.wait_for(3)

    assert sorted(taker.ids) == ["0", "1", "2"]


async def test_replicas_in_order_never_overlap(
    bus: Bus, nats_common: CommonSettings, stream: str
) -> None:
    running, seen, complete = 0, list[str](), asyncio.Event()

    async def handler(messages: list[CancelRequest]) -> None:
        nonlocal running
        assert running == 0
        running += 1
        await asyncio.sleep(0)
        seen.extend(message.request_id for message in messages)
        running -= 1
        if len(seen) == 60:
            complete.set()

    await make_stream(bus, stream)
    async with Bus.connect(nats_common, name="replica") as replica:
        for connection in (bus, replica):
            await connection.consume(stream, "d", CancelRequest, handler, batch=10, in_order=True)
        await fill(bus, stream, 60)
        async with asyncio.timeout(60):
            await complete.wait()

    assert seen == [str(i) for i in range(60)]


async def test_a_durable_that_is_not_there_has_done_nothing(bus: Bus, stream: str) -> None:
    assert await bus.consumer_progress(stream, "d") == ConsumerProgress(0, 0, 0)
    await make_stream(bus, stream)
    await fill(bus, stream, 3)
    assert await bus.consumer_progress(stream, "d") == ConsumerProgress(3, 0, 3)
