"""The router as its own process on real NATS and Redis: heartbeats in, routing requests out."""

import asyncio
import contextlib
import copy
import functools
import json
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from integration.kvstore.service_process import ServiceProcess, running_service
from integration.router.index_events import DEVICE, hashes, make_event, pack
from nats import connect
from redis.asyncio import Redis
from support.servers import Server
from support.span_files import read_spans

from pagoda.rpc.v1 import kv_event_pb2, route_pb2, status_pb2
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.messaging.kv_events import KvEventPublisher
from pagoda_runtime.status import Heartbeat
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry, tracer
from pagoda_worker.tiers.device_blocks import DeviceBlocks

pytestmark = [pytest.mark.integration, pytest.mark.slow]

IDENTITY = b"identity-0123456"


def make_status(worker_id: str, role: "status_pb2.Role.ValueType") -> status_pb2.WorkerStatus:
    return status_pb2.WorkerStatus(
        worker_id=worker_id,
        epoch="e1",
        role=role,
        state=status_pb2.WORKER_STATE_READY,
        model=status_pb2.ModelCard(
            name="org/demo", kv_identity=IDENTITY, block_size=16, block_bytes=1000
        ),
        load=status_pb2.Load(num_blocks=1000, num_free_blocks=1000, max_num_seqs=8),
        host_id="host-a",
    )


def make_request(num_blocks: int = 20, model: str = "org/demo") -> route_pb2.RouteRequest:
    return route_pb2.RouteRequest(
        request_id="r1",
        model=model,
        kv_identity=IDENTITY,
        num_prompt_tokens=num_blocks * 16 + 1,
        max_tokens=8,
        block_hashes=pack(range(num_blocks)),
    )


async def ask(bus: Bus, request: route_pb2.RouteRequest) -> route_pb2.RouteResponse:
    subject = subjects.route(request.model)
    return await bus.request(subject, request, route_pb2.RouteResponse, timeout_seconds=60)


@contextlib.asynccontextmanager
async def beating(bus: Bus, *statuses: status_pb2.WorkerStatus) -> AsyncIterator[None]:
    """Heartbeats of these workers while the context lasts."""
    beats = [
        Heartbeat(bus, functools.partial(copy.copy, status), interval_seconds=0.1)
        for status in statuses
    ]
    tasks = [asyncio.create_task(beat.run()) for beat in beats]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until_placed(bus: Bus) -> route_pb2.RouteResponse:
    async with asyncio.timeout(60):
        while True:
            response = await ask(bus, make_request())
            if response.status == route_pb2.ROUTE_STATUS_PLACED:
                return response


async def publish(bus: Bus, event: kv_event_pb2.KvEvent, message_id: str) -> None:
    subject = subjects.kv_events(event.worker_id)
    await bus.publish_durable(subject, event, message_id=message_id, timeout_seconds=60)


async def until_matched(
    bus: Bus, worker_id: str, num_blocks: int, *, chosen: bool = False
) -> route_pb2.RouteResponse:
    """Ask until the index says that a worker holds that many blocks, and it is `chosen`.

    What was asked for before is its load until it reports, so it need not be at once.
    """
    async with asyncio.timeout(60):
        while True:
            response = await ask(bus, make_request())
            for candidate in response.candidates:
                is_it = candidate.prefill_worker_id == worker_id
                is_it = is_it and candidate.num_device_blocks == num_blocks
                if is_it and (candidate.is_chosen or not chosen):
                    return response


@pytest.fixture
def router(common: CommonSettings) -> Iterator[ServiceProcess]:
    with running_service("router", common) as process:
        yield process


WORKERS = (
    make_status("prefill-1", status_pb2.ROLE_PREFILL),
    make_status("prefill-2", status_pb2.ROLE_PREFILL),
    make_status("decode-1", status_pb2.ROLE_DECODE),
)


async def test_places_by_heartbeats_and_by_prefix(router: ServiceProcess, bus: Bus) -> None:
    assert (await ask(bus, make_request())).status == route_pb2.ROUTE_STATUS_NO_WORKER
    async with beating(bus, *WORKERS):
        response = await until_placed(bus)
        assert (response.decode_worker_id, response.decode_epoch) == ("decode-1", "e1")
        compared = {c.prefill_worker_id for c in response.candidates}
        assert compared == {"", "prefill-1", "prefill-2"}  # "": decode computes the prompt
        await publish(bus, make_event(range(12), worker_id="prefill-2", tier=DEVICE), "prefix:1")
        response = await until_matched(bus, "prefill-2", 12, chosen=True)
        (warm,) = [c for c in response.candidates if c.prefill_worker_id == "prefill-2"]
        assert warm.num_miss_tokens == 20 * 16 + 1 - 12 * 16
        assert warm.compute_ms < max(c.compute_ms for c in response.candidates)
    unknown = await ask(bus, make_request(model="other"))
    assert unknown.status == route_pb2.ROUTE_STATUS_NO_WORKER
    metrics = router.metrics()
    assert 'pagoda_router_decisions_total{outcome="placed",plan="remote"}' in metrics
    assert "pagoda_router_decision_seconds_bucket" in metrics
    assert router.stop() == 0


@contextlib.asynccontextmanager
async def holding(bus: Bus, worker_id: str, numbers: Iterable[int]) -> AsyncIterator[None]:
    """A worker that holds these blocks and says so, also when it is asked."""
    blocks = DeviceBlocks()
    blocks.add(hashes(numbers), [])
    publisher = KvEventPublisher(
        bus, blocks, worker_id=worker_id, epoch="e1", interval_seconds=0.15, kv_identity=IDENTITY
    )
    await publisher.listen()
    task = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_index_is_rebuilt_from_the_workers_and_a_dead_redis_is_survived(
    router: ServiceProcess,
    bus: Bus,
    common: CommonSettings,
    redis: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the stream remembers is not needed: it is emptied first."""
    monkeypatch.setattr("pagoda_runtime.messaging.kv_events.SNAPSHOT_PAUSE_SECONDS", 0.1)
    client = Redis.from_url(common.redis_url)
    async with beating(bus, *WORKERS), holding(bus, "prefill-1", range(7)):
        await until_placed(bus)
        await until_matched(bus, "prefill-1", 7)
        nats = await connect(common.nats_url, token=common.nats_token.get_secret_value())
        await nats.jetstream().purge_stream(subjects.KV_EVENTS_STREAM)
        await nats.close()
        await client.flushall()
        await until_matched(bus, "prefill-1", 7)
        redis.stop(kill=True)
        for _ in range(20):
            assert (await ask(bus, make_request())).status == route_pb2.ROUTE_STATUS_PLACED
        await until_reported(router, is_ready=True, component="index", detail="without prefix")
        redis.start()
        await until_matched(bus, "prefill-1", 7)
    await client.aclose()


async def until_reported(
    router: ServiceProcess, *, is_ready: bool, component: str, detail: str
) -> None:
    """Ask /readyz until it says so."""
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            answer = await http.get(f"{router.health_url}/readyz", timeout=60)
            report = answer.json()
            assert report["ready"] is (answer.status_code == 200)
            said = report["components"][component]["detail"]
            if report["ready"] is is_ready and detail in said:
                return


async def test_requests_are_answered_while_a_replica_stops(
    router: ServiceProcess, bus: Bus, common: CommonSettings
) -> None:
    other = common.model_copy(update={"home": common.home / "other"})
    with running_service("router", other) as replica:
        async with beating(bus, *WORKERS):
            routers: set[str] = set()
            async with asyncio.timeout(60):
                while len(routers) < 2:
                    routers.add((await until_placed(bus)).router_id)
            asking = asyncio.create_task(ask_steadily(bus))
            assert await asyncio.to_thread(replica.stop, signal.SIGTERM) == 0
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking


async def ask_steadily(bus: Bus) -> None:
    while True:
        assert (await ask(bus, make_request())).status == route_pb2.ROUTE_STATUS_PLACED


async def test_spans_hang_together_and_explain(
    common: CommonSettings, bus: Bus, tmp_path: Path
) -> None:
    folder = tmp_path / "traces"
    traced = common.model_copy(update={"trace_dir": folder})
    setup_telemetry("gateway", traced, instance_id="test")
    with running_service("router", common, {"PAGODA_TRACE_DIR": str(folder)}) as process:
        async with beating(bus, *WORKERS):
            await until_placed(bus)
            with tracer().start_as_current_span("gateway.request"):
                response = await ask(bus, make_request())
        process.stop()
    shutdown_telemetry()
    spans = read_spans(folder)
    (request,) = [span for span in spans if span["name"] == "gateway.request"]
    ours = {s["name"]: s for s in spans if s["trace_id"] == request["trace_id"]}
    assert ours["router.route"]["parent_span_id"] == request["span_id"]
    assert ours["router.match"]["parent_span_id"] == ours["router.route"]["span_id"]
    attributes = ours["router.route"]["attributes"]
    explained = json.loads(attributes["pagoda.route.candidates"])
    assert [entry["prefill"] for entry in explained] == [
        candidate.prefill_worker_id for candidate in response.candidates
    ]
    assert attributes["pagoda.route.decode_worker_id"] == "decode-1"
    assert attributes["pagoda.route.margin_ms"] >= 0


async def test_router_without_nats_is_not_ready_until_it_is_back(
    router: ServiceProcess, bus: Bus, nats: Server
) -> None:
    nats.stop(kill=True)
    await until_reported(router, is_ready=False, component="route", detail="no connection to NATS")
    nats.start()
    await until_reported(router, is_ready=True, component="route", detail="")
    assert (await ask(bus, make_request())).status == route_pb2.ROUTE_STATUS_NO_WORKER
