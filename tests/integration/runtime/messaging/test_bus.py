import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.context import Context
from pydantic import SecretStr
from support.servers import Server, free_port, settings_for

from pagoda.rpc.v1.generate_pb2 import CancelRequest, GenerateResponse
from pagoda.rpc.v1.kv_store_pb2 import MatchRequest
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import (
    BusConnectError,
    BusDisconnectedError,
    MessageFormatError,
    MessageTooLargeError,
    NoResponderError,
    RemoteHandlerError,
    RequestTimeoutError,
)
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.request_server import read_at
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry, tracer

pytestmark = pytest.mark.integration


@pytest.fixture
def subject() -> str:
    return f"test.{uuid.uuid4().hex}"


@pytest_asyncio.fixture
async def peer(nats_common: CommonSettings) -> AsyncIterator[Bus]:
    async with Bus.connect(nats_common, name="peer") as connection:
        yield connection


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[None]:
    setup_telemetry("test", CommonSettings(trace_dir=tmp_path), instance_id="t")
    yield
    shutdown_telemetry()


async def echo(request: CancelRequest, _context: Context) -> GenerateResponse:
    return GenerateResponse(message=request.request_id)


async def test_request_and_answer(bus: Bus, peer: Bus, subject: str) -> None:
    await peer.serve(subject, CancelRequest, echo)

    answer = await bus.request(
        subject, CancelRequest(request_id="r"), GenerateResponse, timeout_seconds=60
    )

    assert answer.message == "r"


async def test_each_request_gets_its_own_answer_whatever_comes_first(
    bus: Bus, peer: Bus, subject: str
) -> None:
    num_requests, have_come = 50, asyncio.Event()
    waiting: list[asyncio.Event] = []

    async def last_first(request: CancelRequest, context: Context) -> GenerateResponse:
        turn = asyncio.Event()
        waiting.append(turn)
        if len(waiting) == num_requests:
            have_come.set()
        await turn.wait()
        waiting.pop()
        if waiting:
            waiting[-1].set()
        return await echo(request, context)

    async def ask(name: str) -> str:
        answer = await bus.request(
            subject, CancelRequest(request_id=name), GenerateResponse, timeout_seconds=60
        )
        return answer.message

    await peer.serve(subject, CancelRequest, last_first)
    names = [f"r{i}" for i in range(num_requests)]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(name)) for name in names]
        await have_come.wait()
        waiting[-1].set()
    assert [task.result() for task in asked] == names


async def test_requests_that_end_badly_leave_nothing_that_waits(
    bus: Bus, peer: Bus, subject: str
) -> None:
    has_come = asyncio.Event()

    async def never(_request: CancelRequest, _context: Context) -> GenerateResponse:
        has_come.set()
        await asyncio.Event().wait()
        raise AssertionError

    def ask(to: str, seconds: float) -> asyncio.Task[GenerateResponse]:
        request = bus.request(to, CancelRequest(), GenerateResponse, timeout_seconds=seconds)
        return asyncio.create_task(request)

    await peer.serve(subject, CancelRequest, never)
    asked = [ask(subject, 0.05), ask(f"{subject}.nobody", 5), ask(subject, 60)]
    await has_come.wait()
    asked[2].cancel()
    results = await asyncio.gather(*asked, return_exceptions=True)
    kinds = [RequestTimeoutError, NoResponderError, asyncio.CancelledError]
    assert [type(result) for result in results] == kinds
    assert not bus._connection.replies._waiting


async def test_nobody_listens(bus: Bus, subject: str) -> None:
    with pytest.raises(NoResponderError, match=subject):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)


async def test_no_answer_in_time(bus: Bus, peer: Bus, subject: str) -> None:
    async def never(_request: CancelRequest, _context: Context) -> GenerateResponse:
        await asyncio.Event().wait()
        raise AssertionError

    await peer.serve(subject, CancelRequest, never)

    with pytest.raises(RequestTimeoutError, match=r"0\.05 s"):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=0.05)


async def test_a_failing_handler_answers_with_its_error(bus: Bus, peer: Bus, subject: str) -> None:
    async def fail(_request: CancelRequest, _context: Context) -> GenerateResponse:
        raise ValueError("no such thing")

    await peer.serve(subject, CancelRequest, fail)

    with pytest.raises(RemoteHandlerError, match="ValueError: no such thing"):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)


async def test_an_answer_that_is_no_message(bus: Bus, peer: Bus, subject: str) -> None:
    async def answer(_request: CancelRequest, _context: Context) -> MatchRequest:
        return MatchRequest(block_hashes=b"\xff")  # its field 2 is no text

    await peer.serve(subject, CancelRequest, answer)

    with pytest.raises(MessageFormatError, match="no GenerateResponse"):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)


async def test_requests_are_served_concurrently_up_to_the_limit(
    bus: Bus, peer: Bus, subject: str
) -> None:
    running, most, gate = 0, 0, asyncio.Semaphore(0)
    three_run = asyncio.Event()

    async def slow(request: CancelRequest, _context: Context) -> GenerateResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            three_run.set()
        await gate.acquire()
        running -= 1
        return GenerateResponse(message=request.request_id)

    await peer.serve(subject, CancelRequest, slow, max_concurrent=3)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(
                bus.request(
                    subject, CancelRequest(request_id=str(i)), GenerateResponse, timeout_seconds=60
                )
            )
            for i in range(8)
        ]
        await three_run.wait()
        for _ in range(8):
            gate.release()

    assert [call.result().message for call in calls] == [str(i) for i in range(8)]
    assert most == 3


async def test_clocks_of_hosts_may_differ(
    bus: Bus, peer: Bus, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining: list[float] = []

    async def answer(_request: CancelRequest, context: Context) -> GenerateResponse:
        remaining.append(time.monotonic() - read_at(context))
        return GenerateResponse()

    await peer.serve(subject, CancelRequest, answer)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)  # of who asks: servers have theirs
    await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)

    assert 0 <= remaining[0] < 60


async def test_requests_whose_callers_gave_up_are_not_served(
    bus: Bus, peer: Bus, subject: str
) -> None:
    served: list[str] = []
    gate = asyncio.Event()
    running = asyncio.Event()

    async def slow(request: CancelRequest, _context: Context) -> GenerateResponse:
        served.append(request.request_id)
        running.set()
        await gate.wait()
        return GenerateResponse()

    async def ask(name: str, seconds: float) -> GenerateResponse:
        message = CancelRequest(request_id=name)
        return await bus.request(subject, message, GenerateResponse, timeout_seconds=seconds)

    await peer.serve(subject, CancelRequest, slow, max_concurrent=1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(ask("first", 9))
        await running.wait()
        given_up = [ask(f"gives up {i}", 0.1) for i in range(20)]
        answers = await asyncio.gather(*given_up, return_exceptions=True)
        assert {type(answer) for answer in answers} == {RequestTimeoutError}
        await asyncio.sleep(0.3)  # what they took on their way is not counted there
        last = tasks.create_task(ask("last", 9))
        gate.set()
        await last
    assert served == ["first", "last"]


async def test_an_answer_too_large_is_an_error_at_once(bus: Bus, peer: Bus, subject: str) -> None:
    async def large(_request: CancelRequest, _context: Context) -> GenerateResponse:
        return GenerateResponse(message="x" * (2 << 20))

    await peer.serve(subject, CancelRequest, large)

    with pytest.raises(RemoteHandlerError, match="MessageTooLargeError"):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)


async def test_a_queue_group_shares_requests(bus: Bus, peer: Bus, subject: str) -> None:
    seen: list[str] = []

    async def first(_request: CancelRequest, _context: Context) -> GenerateResponse:
        seen.append("first")
        return GenerateResponse()

    async def second(_request: CancelRequest, _context: Context) -> GenerateResponse:
        seen.append("second")
        return GenerateResponse()

    await bus.serve(subject, CancelRequest, first, queue="q")
    await peer.serve(subject, CancelRequest, second, queue="q")
    for _ in range(50):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)

    assert len(seen) == 50
    assert set(seen) == {"first", "second"}


async def test_messages_arrive_in_order_and_none_is_lost(bus: Bus, peer: Bus, subject: str) -> None:
    seen: list[int] = []
    complete = asyncio.Event()

    async def on_message(message: CancelRequest, _context: Context) -> None:
        await asyncio.sleep(0)
        seen.append(int(message.request_id))
        if len(seen) == 500:
            complete.set()

    await bus.subscribe(subject, CancelRequest, on_message)  # the server knows it: no message lost
    for i in range(500):
        await peer.publish(subject, CancelRequest(request_id=str(i)))
    async with asyncio.timeout(60):
        await complete.wait()

    assert seen == list(range(500))


async def test_a_failing_subscriber_goes_on(bus: Bus, peer: Bus, subject: str) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: CancelRequest, _context: Context) -> None:
        if message.request_id == "bad":
            raise ValueError("bad")
        seen.put_nowait(message.request_id)

    await bus.subscribe(subject, CancelRequest, on_message)
    await peer.publish(subject, CancelRequest(request_id="bad"))
    await peer.publish(subject, CancelRequest(request_id="good"))

    assert await asyncio.wait_for(seen.get(), 60) == "good"


async def test_unsubscribe_ends_it_and_may_be_repeated(bus: Bus, subject: str) -> None:
    subscription = await bus.serve(subject, CancelRequest, echo)
    await subscription.unsubscribe()
    await subscription.unsubscribe()

    with pytest.raises(NoResponderError):
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)


async def test_a_message_too_large_is_refused_with_both_sizes(bus: Bus, subject: str) -> None:
    with pytest.raises(MessageTooLargeError) as raised:
        await bus.publish(subject, CancelRequest(reason="x" * (2 << 20)))

    assert raised.value.max_bytes == 1 << 20
    assert raised.value.size_bytes > 2 << 20


@pytest.mark.usefixtures("traced")
async def test_the_trace_context_travels(bus: Bus, peer: Bus, subject: str) -> None:
    trace_ids: list[int] = []

    async def note(_request: CancelRequest, context: Context) -> GenerateResponse:
        trace_ids.append(trace.get_current_span(context).get_span_context().trace_id)
        trace_ids.append(trace.get_current_span().get_span_context().trace_id)
        return GenerateResponse()

    await peer.serve(subject, CancelRequest, note)
    with tracer().start_as_current_span("root") as span:
        await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60)
    given = trace.set_span_in_context(span)
    await bus.request(subject, CancelRequest(), GenerateResponse, timeout_seconds=60, context=given)

    assert trace_ids == [span.get_span_context().trace_id] * 4


async def test_cancelling_a_request_leaves_the_connection_usable(
    bus: Bus, peer: Bus, subject: str
) -> None:
    called = asyncio.Event()

    async def handler(request: CancelRequest, context: Context) -> GenerateResponse:
        called.set()
        if request.request_id == "wait":
            await asyncio.Event().wait()
        return await echo(request, context)

    await peer.serve(subject, CancelRequest, handler)
    async with asyncio.timeout(60):
        task = asyncio.create_task(
            bus.request(
                subject, CancelRequest(request_id="wait"), GenerateResponse, timeout_seconds=60
            )
        )
        await called.wait()
        task.cancel()
        await asyncio.wait([task])
        answer = await bus.request(
            subject, CancelRequest(request_id="r"), GenerateResponse, timeout_seconds=60
        )

    assert answer.message == "r"


async def test_a_closed_bus_says_so(nats_common: CommonSettings) -> None:
    async with Bus.connect(nats_common, name="short") as closed:
        pass

    assert not closed.is_connected
    with pytest.raises(BusDisconnectedError):
        await closed.publish("test.x", CancelRequest())


async def test_errors_of_the_body_are_not_wrapped(nats_common: CommonSettings) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with Bus.connect(nats_common, name="short"):
            raise KeyError("mine")


async def test_no_server_fails_after_the_time(tmp_path: Path) -> None:
    common = settings_for(home=tmp_path, nats_url=f"nats://127.0.0.1:{free_port()}")

    with pytest.raises(BusConnectError, match="PAGODA_NATS_URL"):
        async with Bus.connect(common, name="x", timeout_seconds=0.3):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_attempts_before_the_first_connection_are_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    url = f"nats://{host}:{free_port()}"
    with pytest.raises(BusConnectError, match=rf"to NATS at {url} within 1.5 s \(.*\d"):
        async with Bus.connect(
            settings_for(home=tmp_path, nats_url=url), name="x", timeout_seconds=1.5
        ):
            pass
    (line,) = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert line.startswith(f"no connection to NATS at {url} yet: ")


async def test_a_wrong_token_fails_at_once(nats: Server, tmp_path: Path) -> None:
    common = settings_for(nats, home=tmp_path, nats_token=SecretStr("wrong"))

    with pytest.raises(BusConnectError, match="Authorization"):
        async with asyncio.timeout(60), Bus.connect(common, name="x"):
            pass
