"""`Bus.post` and `Bus.listen`, without a task or a queue in between, against a real server."""

import asyncio
import contextlib
import signal

import pytest
from nats.aio.msg import Msg
from opentelemetry.context import Context
from support.servers import Server

from pagoda.rpc.v1.generate_pb2 import CancelRequest
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import BusDisconnectedError, BusError, MessageTooLargeError
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.connection import MAX_UNSENT_BYTES
from pagoda_runtime.telemetry.metrics import BUS_HANDLER_ERRORS

pytestmark = pytest.mark.integration
SECONDS = 60.0


class Heard:
    """Ids that came, in order."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._changed = asyncio.Event()

    def take(self, message: CancelRequest) -> None:
        self.ids.append(message.request_id)
        self._changed.set()

    async def until(self, last: str) -> None:
        async with asyncio.timeout(SECONDS):
            while last not in self.ids:
                self._changed.clear()
                await self._changed.wait()


def request(number: int) -> CancelRequest:
    return CancelRequest(request_id=str(number))


async def test_posts_and_publishes_keep_their_order(bus: Bus) -> None:
    heard = Heard()
    await bus.listen("test.direct.order", CancelRequest, heard.take)
    for number in range(400):
        if number % 3:
            bus.post("test.direct.order", request(number))
        else:
            await bus.publish("test.direct.order", request(number), context=Context())
    await heard.until("399")

    assert heard.ids == [str(number) for number in range(400)]


async def test_a_listener_that_raises_hears_the_next(bus: Bus) -> None:
    heard = Heard()

    def on_message(message: CancelRequest) -> None:
        if message.request_id == "0":
            raise RuntimeError("no")
        heard.take(message)

    failed = BUS_HANDLER_ERRORS.labels("direct")
    before = failed._value.get()
    await bus.listen("test.v1.direct", CancelRequest, on_message)
    bus.post("test.v1.direct", request(0))
    bus.post("test.v1.direct", request(1))
    await heard.until("1")

    assert failed._value.get() == before + 1


@pytest.mark.parametrize(
    "subject",
    [
        "test.direct.x 0\r\n\r\nPUB test.direct.forged 0\r\n\r\nPUB test.direct.x",
        "test.direct.forged reply",
        "test.direct.\t",
        "test.direct.\x7f",
        "",
    ],
)
async def test_what_is_no_subject_is_not_written(bus: Bus, subject: str) -> None:
    heard = Heard()
    await bus.listen("test.direct.forged", CancelRequest, heard.take)
    with pytest.raises(BusError, match="invalid subject"):
        bus.post(subject, request(0))
    with pytest.raises(BusError, match="invalid subject"):
        bus.ask(subject, request(0), CancelRequest, timeout_seconds=SECONDS)
    bus.post("test.direct.forged", request(1))
    await heard.until("1")

    assert heard.ids == ["1"]


async def test_unsubscribed_listeners_hear_nothing(bus: Bus) -> None:
    heard, others = Heard(), Heard()
    subscription = await bus.listen("test.direct.end", CancelRequest, heard.take)
    await bus.listen("test.direct.end", CancelRequest, others.take)
    await subscription.unsubscribe()
    bus.post("test.direct.end", request(0))
    await others.until("0")

    assert heard.ids == []
    assert not bus._client._listeners.keys() - bus._client._subs.keys()


async def test_what_is_too_large_is_refused(bus: Bus) -> None:
    with pytest.raises(MessageTooLargeError):
        bus.post("test.direct.large", CancelRequest(request_id="x" * (2 << 20)))


@pytest.mark.slow
async def test_posts_wait_for_the_connection_within_bounds(
    own_nats: Server, own_common: CommonSettings
) -> None:
    heard, size = Heard(), 500_000
    async with Bus.connect(own_common, name="a") as bus:
        await bus.listen("test.x", CancelRequest, heard.take)
        own_nats.stop(kill=True)
        async with asyncio.timeout(SECONDS):
            while bus.is_connected:  # noqa: ASYNC110  (the bus has no such event)
                await asyncio.sleep(0.01)
        num_taken = 0
        with contextlib.suppress(BusDisconnectedError):
            while num_taken < 2 * MAX_UNSENT_BYTES / size:
                bus.post("test.x", CancelRequest(request_id=f"{num_taken:0{size}}"))
                num_taken += 1
        own_nats.start()
        await heard.until(f"{num_taken - 1:0{size}}")

    assert [int(text[-9:]) for text in heard.ids] == list(range(num_taken))
    assert MAX_UNSENT_BYTES - 2 * size < num_taken * size <= MAX_UNSENT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("has_context", [False, True])
async def test_a_server_that_does_not_read_bounds_what_waits_and_holds_up_nobody(
    own_nats: Server, own_common: CommonSettings, has_context: bool
) -> None:
    heard, size = Heard(), 100_000
    async with Bus.connect(own_common, name="a") as bus:
        await bus.listen("test.x", CancelRequest, heard.take)
        assert own_nats.process is not None
        own_nats.process.send_signal(signal.SIGSTOP)
        try:
            num_taken = 0
            with contextlib.suppress(BusDisconnectedError):
                while num_taken < 1000:
                    message = CancelRequest(request_id=f"{num_taken:0{size}}")
                    if has_context:
                        async with asyncio.timeout(5):
                            await bus.publish("test.x", message, context=Context())
                    else:
                        bus.post("test.x", message)
                    num_taken += 1
        finally:
            own_nats.process.send_signal(signal.SIGCONT)
        await heard.until(f"{num_taken - 1:0{size}}")
        bus.post("test.x", request(num_taken))
        await heard.until(str(num_taken))

    assert num_taken < 1000  # the sockets' buffers and ours are full before
    assert [int(text[-9:]) for text in heard.ids] == list(range(num_taken + 1))


async def test_who_is_cancelled_as_the_answer_arrives_ends(bus: Bus) -> None:
    """`asyncio.wait_for` of Python 3.11 returns the answer, and a consumer would run for ever."""
    client = bus._client

    async def ask() -> None:
        while True:
            await client.request("test.direct.asked", timeout=SECONDS)

    num_asked = asyncio.Semaphore(0)

    async def answer(message: Msg) -> None:
        num_asked.release()
        await message.respond(b"")

    asked = await client.subscribe("test.direct.asked", cb=answer)
    asking = asyncio.create_task(ask())
    async with asyncio.timeout(SECONDS):
        while not client._resp_map:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (answered,) = client._resp_map.values()
        assert not answered.done()
        answered.add_done_callback(lambda _: asking.cancel())
        await num_asked.acquire()
        again = asyncio.create_task(num_asked.acquire())
        await asyncio.wait([asking, again], return_when=asyncio.FIRST_COMPLETED)
    assert asking.cancelled()
    again.cancel()
    await asked.unsubscribe()
