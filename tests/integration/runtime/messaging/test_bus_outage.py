"""The NATS server goes away and comes back."""

import asyncio
import signal

import pytest
from opentelemetry.context import Context
from support.servers import Server

from pagoda.rpc.v1.generate_pb2 import CancelRequest, GenerateResponse
from pagoda.rpc.v1.status_pb2 import Role, WorkerState, WorkerStatus
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import RequestTimeoutError
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.connection import Connection
from pagoda_runtime.status import Heartbeat, WorkerDirectory

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def until_disconnected(bus: Bus | Connection) -> None:
    async with asyncio.timeout(60):
        while bus.is_connected:  # noqa: ASYNC110  (the bus has no such event)
            await asyncio.sleep(0.01)


async def test_the_bus_comes_back(own_nats: Server, own_common: CommonSettings) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: CancelRequest, _context: Context) -> None:
        seen.put_nowait(message.request_id)

    async def answer(request: CancelRequest, _context: Context) -> GenerateResponse:
        return GenerateResponse(message=request.request_id)

    async with Bus.connect(own_common, name="a") as bus:
        await bus.subscribe("test.x", CancelRequest, on_message)
        await bus.serve("test.y", CancelRequest, answer)
        own_nats.stop(kill=True)
        await until_disconnected(bus)
        with pytest.raises(RequestTimeoutError):
            await bus.request("test.y", CancelRequest(), GenerateResponse, timeout_seconds=0.1)
        await bus.publish("test.x", CancelRequest(request_id="buffered"))
        own_nats.start()

        response = await bus.request(
            "test.y", CancelRequest(request_id="r"), GenerateResponse, timeout_seconds=60
        )
        assert response.message == "r"
        assert await asyncio.wait_for(seen.get(), 60) == "buffered"
        assert bus.is_connected


async def test_durable_messages_and_consumers_survive(
    own_nats: Server, own_common: CommonSettings
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(messages: list[CancelRequest]) -> None:
        for message in messages:
            seen.put_nowait(message.request_id)

    async def wait_for(request_id: str) -> None:
        """Take what comes until it is this; an acknowledgement may have died with the server."""
        while await asyncio.wait_for(seen.get(), 60) != request_id:
            pass

    async with Bus.connect(own_common, name="a") as bus:
        await bus.ensure_stream("S", ["s.*"], max_bytes=1 << 20, discard_old=True)
        await bus.consume("S", "d", CancelRequest, handler, batch=10)
        for i in range(2):
            await bus.publish_durable(
                "s.x", CancelRequest(request_id=str(i)), message_id=str(i), timeout_seconds=60
            )
            await wait_for(str(i))
            own_nats.stop(kill=True)
            own_nats.start()
        await bus.publish_durable(
            "s.x", CancelRequest(request_id="2"), message_id="2", timeout_seconds=60
        )
        await wait_for("2")


@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "standing-still"])
async def test_an_outage_makes_no_worker_disappear(
    own_nats: Server, own_common: CommonSettings, is_dead: bool
) -> None:
    gone: list[str] = []
    alive, left = asyncio.Event(), asyncio.Event()

    def listener(worker_id: str, status: WorkerStatus | None) -> None:
        if status is None:
            gone.append(worker_id)
            left.set()
        else:
            alive.set()

    def make_status() -> WorkerStatus:
        return WorkerStatus(
            worker_id="d1",
            epoch="e1",
            role=Role.ROLE_DECODE,
            state=WorkerState.WORKER_STATE_READY,
        )

    directory = WorkerDirectory(expiry_seconds=0.6)
    directory.add_listener(listener)
    async with Bus.connect(own_common, name="a") as bus, asyncio.timeout(60):
        await directory.subscribe(bus, Role.ROLE_DECODE)
        heartbeat = asyncio.create_task(Heartbeat(bus, make_status, interval_seconds=0.05).run())
        await alive.wait()
        if is_dead:
            own_nats.stop(kill=True)
            await until_disconnected(bus)
        else:  # its connections stay
            assert own_nats.process is not None
            own_nats.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)  # an outage longer than the expiry
        alive.clear()
        if is_dead:
            own_nats.start()
        else:
            own_nats.process.send_signal(signal.SIGCONT)
        await alive.wait()
        assert gone == []
        assert directory.get("d1") is not None

        heartbeat.cancel()
        await left.wait()  # the goodbye
        assert gone == ["d1"]


async def test_the_time_without_a_server_is_known(own_nats: Server) -> None:
    now = [100.0]
    connection = Connection(own_nats.url, clock=lambda: now[0])
    assert connection.lost_seconds == 0
    await connection.open("a", own_nats.secret, 10)
    try:
        own_nats.stop(kill=True)
        await until_disconnected(connection)
        now[0] += 1.25
        assert connection.lost_seconds == 1.25
        own_nats.start()
        async with asyncio.timeout(60):
            await connection.wait()
        assert connection.lost_seconds == 0
    finally:
        connection.begin_closing()
        await connection.close()
