"""The router process: hears heartbeats and KV events, answers routing requests, keeps the index."""

import asyncio
import contextlib
import functools
import logging

from opentelemetry.context import Context
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pagoda.rpc.v1 import kv_event_pb2, route_pb2, status_pb2
from pagoda_router import metrics
from pagoda_router.config import RouterSettings
from pagoda_router.index.prefix_index import PrefixIndex
from pagoda_router.index.writer import DURABLE, IndexWriter
from pagoda_router.placement.planner import PlacementSettings
from pagoda_router.router import Router
from pagoda_router.workers.pending_load import PendingLoads
from pagoda_router.workers.registry import WorkerRegistry
from pagoda_router.workers.snapshot import WorkerRole
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.identity import new_epoch
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.service import ServiceContext
from pagoda_runtime.status import (
    SLOW_HEARTBEAT_SECONDS,
    Heartbeat,
    WorkerDirectory,
    slow_status,
)
from pagoda_runtime.tasks.breaker import Breaker
from pagoda_runtime.tasks.ending import end

# Of the index writer: applying events and maintaining.
_MAINTENANCE_CONNECTIONS = 4
_EVENTS_PER_PULL = 64  # in order they come one at a time
_REPORT_SECONDS = 0.25

logger = logging.getLogger(__name__)


async def run(context: ServiceContext, settings: RouterSettings) -> None:
    """Route until `context.stop` is set; requests taken by then are answered."""
    context.health.set_ready("route", False, "listening for workers")
    pending_loads = PendingLoads(
        settle_seconds=settings.settle_seconds, max_seconds=settings.in_flight_seconds
    )
    async with (
        context.bus(context.instance_id) as bus,
        contextlib.aclosing(connect_redis(context.common, settings)) as redis,
    ):
        registry = WorkerRegistry(
            settings, pending_loads, on_retired=lambda *life: writer.retire(*life)
        )
        writer = IndexWriter(
            redis,
            bus,
            registry,
            ttl_seconds=settings.index_ttl_seconds,
            check_seconds=settings.index_check_seconds,
            max_bytes=settings.index_max_bytes,
        )
        index = PrefixIndex(
            redis,
            timeout_seconds=settings.redis_timeout_seconds,
            breaker=Breaker(open_seconds=settings.breaker_seconds),
        )
        router = Router(
            registry,
            index,
            pending_loads,
            _placement_settings(context.common, settings),
            router_id=context.instance_id,
        )
        await _serve(context, settings, bus, registry, writer, router)


def connect_redis(common: CommonSettings, settings: RouterSettings) -> Redis:
    """Return a client that fails fast: retrying is the breaker's and the bus's business."""
    pool = BlockingConnectionPool.from_url(
        common.redis_url,
        max_connections=settings.max_concurrent + _MAINTENANCE_CONNECTIONS,
        timeout=settings.redis_timeout_seconds,
        socket_connect_timeout=1.0,
        socket_timeout=5.0,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def _placement_settings(common: CommonSettings, settings: RouterSettings) -> PlacementSettings:
    return PlacementSettings(
        local_prefill=common.local_prefill,
        expected_output_tokens=settings.expected_output_tokens,
        fetch_base_ms=settings.fetch_base_ms,
        load_factor=settings.load_factor,
        min_load_bound=settings.min_load_bound,
    )


async def _serve(
    context: ServiceContext,
    settings: RouterSettings,
    bus: Bus,
    registry: WorkerRegistry,
    writer: IndexWriter,
    router: Router,
) -> None:
    async def on_route(message: route_pb2.RouteRequest, _: Context) -> route_pb2.RouteResponse:
        return await router.route(message)

    directory = WorkerDirectory()
    directory.add_listener(registry.on_status)
    for role in WorkerRole:
        metrics.WORKERS.labels(role.value).set_function(functools.partial(_count, registry, role))
    heartbeats = await directory.subscribe(
        bus, status_pb2.ROLE_PREFILL, status_pb2.ROLE_DECODE, status_pb2.ROLE_KVSTORE
    )
    await bus.ensure_stream(
        subjects.KV_EVENTS_STREAM,
        [subjects.KV_EVENTS_ALL],
        max_bytes=subjects.KV_EVENTS_MAX_BYTES,
        discard_old=True,
    )
    events = await bus.consume(
        subjects.KV_EVENTS_STREAM,
        DURABLE,
        kv_event_pb2.KvEvent,
        writer.apply,
        batch=_EVENTS_PER_PULL,
        in_order=True,
    )
    maintenance = context.tasks.create_task(writer.run())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.warm_up_seconds):
            await context.stop.wait()
    routes = await bus.serve(
        subjects.ROUTE_ALL,
        route_pb2.RouteRequest,
        on_route,
        queue=subjects.ROUTER_QUEUE,
        max_concurrent=settings.max_concurrent,
    )
    own_status = slow_status(status_pb2.ROLE_ROUTER, context.instance_id, new_epoch())
    heartbeat = Heartbeat(bus, lambda: own_status, interval_seconds=SLOW_HEARTBEAT_SECONDS)
    loops = [
        maintenance,
        context.tasks.create_task(_report(context.health, bus, writer)),
        context.tasks.create_task(heartbeat.run()),
    ]
    try:
        await context.stop.wait()
    finally:
        context.health.set_ready("route", False, "stopping")
        await end(*loops)
        await routes.unsubscribe()
        await events.unsubscribe()
        await heartbeats.unsubscribe()


async def _report(health: Health, bus: Bus, writer: IndexWriter) -> None:
    """Say at /readyz what works. Without Redis it routes on, without affinity; without NATS not."""
    while True:
        detail = "" if bus.is_connected else "no connection to NATS: nobody can ask"
        health.set_ready("route", bus.is_connected, detail)
        health.set_ready("index", True, writer.problem)
        await asyncio.sleep(_REPORT_SECONDS)


def _count(registry: WorkerRegistry, role: WorkerRole) -> float:
    return sum(worker.role is role for worker in registry.everyone())
