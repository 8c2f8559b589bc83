"""A NATS server that knows a user for each service: what they may and may not say."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError
from opentelemetry.context import Context
from pydantic import SecretStr
from support.servers import Server, binary, free_port, settings_for

from pagoda.rpc.v1.generate_pb2 import CancelRequest, GenerateResponse
from pagoda_runtime.errors import BusConnectError, RequestTimeoutError
from pagoda_runtime.messaging import stream_repair, subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.permissions import PERMISSIONS, authorization, inbox_prefix
from pagoda_runtime.messaging.stream_repair import LEASE_STREAM, PROBE_STREAM

pytestmark = pytest.mark.integration

PASSWORDS = {user: f"password-of-{user}" for user in PERMISSIONS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("nats-users")
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(
        f"host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: {folder} }}\n"
        + authorization(PASSWORDS)
    )
    command = [binary("nats-server"), "--config", str(config)]
    server = Server(command, port, folder / "nats.log", "", f"nats://127.0.0.1:{port}")
    server.start()
    yield server
    server.stop(kill=True)


@contextlib.asynccontextmanager
async def bus_of(user: str, server: Server, home: Path) -> AsyncIterator[Bus]:
    secret = SecretStr(PASSWORDS[user])
    common = settings_for(server, home=home, nats_user=user, nats_token=secret)
    async with Bus.connect(common, name=user) as bus:
        yield bus


@contextlib.asynccontextmanager
async def client_of(user: str, server: Server) -> AsyncIterator[tuple[Client, asyncio.Queue[str]]]:
    """A bare client, and what the server refuses it."""
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(error: Exception) -> None:
        refused.put_nowait(str(error).lower())

    client = await nats.connect(
        server.url,
        user=user,
        password=PASSWORDS[user],
        error_cb=on_error,
        inbox_prefix=inbox_prefix(user),
    )
    try:
        yield client, refused
    finally:
        await client.close()


FORBIDDEN_TO_PUBLISH = [
    ("decode", subjects.USAGE_REQUESTS),
    ("decode", subjects.LEDGER_RECONCILE),
    ("decode", subjects.status("prefill", "prefill-1")),
    ("decode", subjects.status("kvstore", "kvstore-1")),
    ("decode", subjects.decode("decode-2")),
    ("decode", subjects.route("model")),
    ("decode", f"{inbox_prefix('gateway')}.guessed.1"),
    ("decode", "$JS.API.STREAM.DELETE.USAGE"),
    ("decode", "$JS.API.STREAM.PURGE.USAGE"),
    ("decode", "$JS.API.STREAM.UPDATE.USAGE"),
    ("decode", "$JS.API.CONSUMER.CREATE.USAGE.mine"),
    ("prefill", subjects.USAGE_REQUESTS),
    ("prefill", subjects.status("decode", "decode-1")),
    ("kvstore", subjects.frames("gateway-1")),
    ("kvstore", subjects.USAGE_SEQUENCES),
    ("router", subjects.USAGE_REQUESTS),
    ("gateway", subjects.USAGE_SEQUENCES),
    ("gateway", "$JS.API.CONSUMER.CREATE.USAGE.mine"),
    ("applier", subjects.USAGE_REQUESTS),
    ("applier", subjects.decode("decode-1")),
    ("router", subjects.frames("gateway-1")),
    ("router", subjects.status("decode", "decode-1")),
    ("gateway", subjects.frames("gateway-1")),
    ("gateway", subjects.status("decode", "decode-1")),
    ("gateway", subjects.kv_events("decode-1")),
    ("gateway", "$JS.API.STREAM.PURGE.KV_EVENTS"),
    # Who may write a stream's configuration hears and says whatever it likes.
    *(
        (user, f"$JS.API.STREAM.{call}.{stream}")
        for user, own in (
            ("gateway", subjects.USAGE_STREAM),
            ("decode", subjects.KV_EVENTS_STREAM),
            ("prefill", subjects.KV_EVENTS_STREAM),
            ("kvstore", subjects.KV_EVENTS_STREAM),
        )
        for stream in (own, PROBE_STREAM, LEASE_STREAM)
        for call in ("CREATE", "UPDATE", "DELETE", "PURGE")
    ),
    ("router", "$JS.API.STREAM.UPDATE.USAGE"),
    ("applier", "$JS.API.STREAM.UPDATE.KV_EVENTS"),
]
FORBIDDEN_TO_HEAR = [
    ("decode", subjects.frames("*")),
    ("decode", subjects.USAGE_ALL),
    ("decode", subjects.ROUTE_ALL),
    ("decode", subjects.prefill("*")),
    ("decode", f"{inbox_prefix('gateway')}.>"),
    ("decode", ">"),
    ("kvstore", subjects.decode("*")),
    ("router", subjects.frames("*")),
    ("gateway", subjects.decode("*")),
]


@pytest.mark.parametrize(("user", "subject"), FORBIDDEN_TO_PUBLISH)
async def test_a_user_cannot_say_what_is_another_s_business(
    server: Server, user: str, subject: str
) -> None:
    async with client_of(user, server) as (client, refused):
        await client.publish(subject, b"forged")
        async with asyncio.timeout(60):
            refusal = await refused.get()

        assert f'permissions violation for publish to "{subject.lower()}"' in refusal


@pytest.mark.parametrize(("user", "subject"), FORBIDDEN_TO_HEAR)
async def test_a_user_cannot_hear_what_is_for_others(
    server: Server, user: str, subject: str
) -> None:
    async with client_of(user, server) as (client, refused):
        await client.subscribe(subject)
        async with asyncio.timeout(60):
            refusal = await refused.get()

        assert f'permissions violation for subscription to "{subject.lower()}"' in refusal


@pytest.mark.parametrize(("user", "password"), [("gateway", "password-of-decode"), ("", "x")])
async def test_nobody_comes_in_with_another_s_password(
    server: Server, tmp_path: Path, user: str, password: str
) -> None:
    common = settings_for(server, home=tmp_path, nats_user=user, nats_token=SecretStr(password))
    with pytest.raises(BusConnectError, match="Authorization"):
        async with Bus.connect(common, name="stranger"):
            pass


async def test_requests_are_answered_across_users(server: Server, tmp_path: Path) -> None:
    async def answer(request: CancelRequest, _context: Context) -> GenerateResponse:
        return GenerateResponse(message=request.request_id)

    pairs = [
        ("gateway", "router", subjects.ROUTE_ALL, subjects.route("model")),
        ("gateway", "decode", subjects.decode("d"), subjects.decode("d")),
        ("decode", "prefill", subjects.prefill("p"), subjects.prefill("p")),
    ]
    for asking, answering, served, asked in pairs:
        async with (
            bus_of(answering, server, tmp_path) as there,
            bus_of(asking, server, tmp_path) as here,
        ):
            await there.serve(served, CancelRequest, answer)
            for _ in range(3):
                response = await here.request(
                    asked, CancelRequest(request_id="r"), GenerateResponse, timeout_seconds=60
                )
                assert response.message == "r"


async def test_an_answer_goes_to_an_inbox_and_nowhere_else(server: Server, tmp_path: Path) -> None:
    """A server lets who answers publish to whatever subject the request names."""

    async def answer(_request: CancelRequest, _context: Context) -> GenerateResponse:
        raise ValueError("whose answer has no payload")

    subject, forbidden = subjects.decode("deputy"), subjects.kv_events("deputy")
    inbox = f"{inbox_prefix('gateway')}.mine"
    async with (
        bus_of("decode", server, tmp_path) as there,
        client_of("gateway", server) as (client, _refused),
        client_of("router", server) as (router, _),
    ):
        await there.serve(subject, CancelRequest, answer)
        stream = router.jetstream(timeout=60)
        await stream.add_stream(name=subjects.KV_EVENTS_STREAM, subjects=[subjects.KV_EVENTS_ALL])
        before = (await stream.stream_info(subjects.KV_EVENTS_STREAM)).state.messages
        answered = await client.subscribe(inbox)
        for reply in (forbidden, f"$JS.API.STREAM.DELETE.{subjects.KV_EVENTS_STREAM}", inbox):
            await client.publish(subject, b"", reply=reply)
        await answered.next_msg(timeout=60)  # by then the others were not answered

        assert (await stream.stream_info(subjects.KV_EVENTS_STREAM)).state.messages == before


@pytest.mark.parametrize(
    ("writers", "reader", "stream", "subject"),
    [
        (("gateway",), "applier", subjects.USAGE_STREAM, subjects.USAGE_REQUESTS),
        (
            ("decode", "prefill", "kvstore"),
            "router",
            subjects.KV_EVENTS_STREAM,
            subjects.kv_events("worker"),
        ),
    ],
)
async def test_streams_are_made_written_read_trimmed_and_replayed(
    server: Server,
    tmp_path: Path,
    writers: tuple[str, ...],
    reader: str,
    stream: str,
    subject: str,
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(messages: list[CancelRequest]) -> None:
        for message in messages:
            seen.put_nowait(message.request_id)

    async def make(bus: Bus, max_bytes: int) -> None:
        await bus.ensure_stream(
            stream, [f"{subject.rsplit('.', 1)[0]}.*"],
            max_bytes=max_bytes, discard_old=True,
        )  # fmt: skip

    async with bus_of(reader, server, tmp_path) as reading:
        await make(reading, 1 << 20)
        await make(reading, 2 << 20)
        await reading.consume(
            stream, "durable", CancelRequest, handler, batch=4, in_order=True, trim_seconds=None
        )
        for writer in writers:
            async with bus_of(writer, server, tmp_path) as writing:
                writing.watch_stream(stream, [f"{subject.rsplit('.', 1)[0]}.*"])
                await writing.publish_durable(
                    subject,
                    CancelRequest(request_id=writer),
                    message_id=f"{stream}-{writer}",
                    timeout_seconds=60,
                )
        async with asyncio.timeout(60):
            assert [await seen.get() for _ in writers] == list(writers)


@pytest.mark.parametrize(
    ("user", "stream", "pattern"),
    [
        ("applier", subjects.USAGE_STREAM, subjects.USAGE_ALL),
        ("router", subjects.KV_EVENTS_STREAM, subjects.KV_EVENTS_ALL),
    ],
)
async def test_who_reads_a_stream_may_repair_it(
    server: Server, tmp_path: Path, user: str, stream: str, pattern: str
) -> None:
    async with bus_of(user, server, tmp_path) as bus, asyncio.timeout(60):
        await bus.ensure_stream(stream, [pattern], max_bytes=1 << 20, discard_old=True)
        repair = bus._streams._repair
        watched = repair._streams[stream]
        while not await repair._is_well(watched, is_silent=True):  # noqa: ASYNC110  (a lease)
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("writer", "owner", "stream", "pattern", "subject"),
    [
        ("gateway", "applier", subjects.USAGE_STREAM, subjects.USAGE_ALL, subjects.USAGE_REQUESTS),
        *(
            (user, "router", subjects.KV_EVENTS_STREAM, subjects.KV_EVENTS_ALL,
             subjects.kv_events("worker"))
            for user in ("decode", "prefill", "kvstore")
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_there", [True, False])
async def test_who_writes_a_stream_has_its_owner_repair_it(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_there: bool,
    writer: str,
    owner: str,
    stream: str,
    pattern: str,
    subject: str,
) -> None:
    async with (
        bus_of(owner, server, tmp_path) as owning,
        bus_of(writer, server, tmp_path) as writing,
        asyncio.timeout(60),
    ):
        await owning.ensure_stream(stream, [pattern], max_bytes=1 << 20, discard_old=True)
        jetstream = owning._client.jetstream(timeout=60)
        before = (await jetstream.stream_info(stream)).created
        owned = owning._streams._repair._streams[stream]
        owned.made_at -= stream_repair.MADE_SECONDS
        monkeypatch.setattr(stream_repair, "RETRY_SECONDS", 0.01)
        if not is_there:
            await jetstream.delete_stream(stream)
        writing.watch_stream(stream, [pattern])
        repair = writing._streams._repair
        repair.suspect(subject, is_silent=True)
        asked = repair._streams[stream].task
        assert asked is not None
        await asked

        assert (await jetstream.stream_info(stream)).created != before
        assert not repair.trouble(subject)
        made_at = owned.made_at
        repair.suspect(subject, is_silent=True)
        again = repair._streams[stream].task
        assert again is not None
        assert again is not asked
        await again
        assert owned.made_at == made_at, "not often, whoever complains"


async def test_what_is_written_before_a_stream_is_there_waits_for_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_repair, "RETRY_SECONDS", 0.01)
    stream, subject = subjects.KV_EVENTS_STREAM, subjects.kv_events("early")
    async with (
        bus_of("router", server, tmp_path) as router,
        bus_of("decode", server, tmp_path) as worker,
        asyncio.timeout(60),
    ):
        with contextlib.suppress(NotFoundError):
            await router._client.jetstream(timeout=60).delete_stream(stream)
        worker.watch_stream(stream, [subjects.KV_EVENTS_ALL])
        with pytest.raises(RequestTimeoutError):
            await worker.publish_durable(
                subject, CancelRequest(), message_id="early", timeout_seconds=0.1
            )
        while not (trouble := worker._streams._repair.trouble(subject)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert "no stream KV_EVENTS" in trouble
        await router.ensure_stream(
            stream, [subjects.KV_EVENTS_ALL],
            max_bytes=1 << 20, discard_old=True,
        )  # fmt: skip
        while worker._streams._repair.trouble(subject):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await worker.publish_durable(
            subject, CancelRequest(), message_id="early", timeout_seconds=60
        )


async def test_a_stream_is_trimmed_by_its_reader(server: Server, tmp_path: Path) -> None:
    async def handler(_messages: list[CancelRequest]) -> None:
        return

    async with bus_of("applier", server, tmp_path) as bus, client_of("applier", server) as raw:
        await bus.ensure_stream(
            subjects.USAGE_STREAM, [subjects.USAGE_ALL],
            max_bytes=1 << 20, discard_old=True,
        )  # fmt: skip
        await bus.consume(
            subjects.USAGE_STREAM, "trimming", CancelRequest, handler, batch=4, trim_seconds=0.02
        )
        async with bus_of("decode", server, tmp_path) as worker:
            await worker.publish_durable(
                subjects.USAGE_SEQUENCES, CancelRequest(), message_id="trimmed", timeout_seconds=60
            )
        jetstream = raw[0].jetstream(timeout=60)
        async with asyncio.timeout(60):
            while (  # noqa: ASYNC110  (the server tells nobody)
                await jetstream.stream_info(subjects.USAGE_STREAM)
            ).state.messages:
                await asyncio.sleep(0.01)


async def test_a_gateway_may_ask_how_far_the_ledger_is(server: Server, tmp_path: Path) -> None:
    async with (
        bus_of("applier", server, tmp_path) as applier,
        bus_of("gateway", server, tmp_path) as bus,
        asyncio.timeout(60),
    ):
        await applier.ensure_stream(
            subjects.USAGE_STREAM, [subjects.USAGE_ALL],
            max_bytes=1 << 20, discard_old=True,
        )  # fmt: skip
        progress = await bus.consumer_progress(subjects.USAGE_STREAM, "nobody")
        assert progress.done_sequence == 0
