"""Answers routing requests: asks the index, compares plans, remembers the choice, explains it."""

import logging
import math
import time

from opentelemetry.trace import Span

from pagoda.rpc.v1 import route_pb2
from pagoda_router import codec, metrics
from pagoda_router.errors import IndexUnavailableError
from pagoda_router.index import redis_keys
from pagoda_router.index.prefix_index import PrefixIndex, SetGroup
from pagoda_router.index.redis_keys import IndexTier
from pagoda_router.placement import planner
from pagoda_router.placement.candidate import Comparison, PrefixMatch, RoutingRequest
from pagoda_router.placement.planner import PlacementSettings
from pagoda_router.workers.pending_load import PendingLoad, PendingLoads
from pagoda_router.workers.registry import WorkerRegistry
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot
from pagoda_runtime.telemetry.tracing import tracer

logger = logging.getLogger(__name__)


class Router:
    """One replica. Holds no truth of its own but the choices of the last second."""

    def __init__(
        self,
        registry: WorkerRegistry,
        index: PrefixIndex,
        pending_loads: PendingLoads,
        settings: PlacementSettings,
        *,
        router_id: str,
    ) -> None:
        """Route within `registry`, as `router_id`."""
        self._registry, self._index, self._pending_loads = registry, index, pending_loads
        self._settings, self._router_id = settings, router_id

    async def route(self, message: route_pb2.RouteRequest) -> route_pb2.RouteResponse:
        """Return where the sequence should run, with the whole comparison.

        Raises:
            InvalidRouteRequestError: the request can never be placed.
        """
        started = time.perf_counter()
        with tracer().start_as_current_span("router.route") as span:
            request = codec.decode_request(message)
            workers = self._registry.workers()
            matches = await self._match(request, workers)
            comparison = planner.compare(request, workers, matches, self._settings)
            self._count_as_load(request, comparison)
            if span.is_recording():
                _explain(span, request, comparison)
        chosen = comparison.chosen
        plan = "none" if chosen is None else "remote" if chosen.prefill_worker_id else "local"
        metrics.DECISIONS.labels(comparison.outcome.value, plan).inc()
        metrics.DECISION_SECONDS.observe(time.perf_counter() - started)
        return codec.encode_comparison(comparison, router_id=self._router_id)

    async def _match(
        self, request: RoutingRequest, workers: list[WorkerSnapshot]
    ) -> dict[str, PrefixMatch]:
        """Return the prefix hits of each worker that could share blocks; none if Redis is away."""
        sharing = [
            worker
            for worker in workers
            if (worker.model, worker.kv_identity) == (request.model, request.kv_identity)
        ]
        groups = self._groups(request, sharing)
        started = time.perf_counter()
        with tracer().start_as_current_span("router.match") as span:
            span.set_attribute("pagoda.match.blocks", len(request.block_hashes))
            span.set_attribute("pagoda.match.sets", sum(len(group.keys) for group in groups))
            if not sharing or not request.block_hashes:
                return {}  # nothing to ask for, which the trace shows too
            try:
                runs = await self._index.match(groups, request.block_hashes)
            except IndexUnavailableError as error:
                span.set_attribute("pagoda.match.unavailable", str(error))
                metrics.UNMATCHED.inc()
                return {}
            finally:
                metrics.BREAKER_OPEN.set(self._index.breaker.is_open)
                metrics.MATCH_SECONDS.observe(time.perf_counter() - started)
        num = len(sharing)
        on_device, reachable = runs[:num], runs[num:]
        with_store = [group.start for group in groups[num:]]
        reach = dict(zip(with_store, reachable, strict=True))
        return {
            worker.worker_id: PrefixMatch(on_device[i], reach.get(i, on_device[i]))
            for i, worker in enumerate(sharing)
        }

    def _groups(self, request: RoutingRequest, sharing: list[WorkerSnapshot]) -> list[SetGroup]:
        """Return one group for each worker's device, then one for each that may fetch."""
        stores = self._registry.kvstores()
        has_prefill = any(
            worker.role is WorkerRole.PREFILL
            and worker.is_ready
            and worker.worker_id not in request.excluded_worker_ids
            for worker in sharing
        )
        groups = [
            SetGroup((redis_keys.blocks(worker.worker_id, worker.epoch, IndexTier.DEVICE),))
            for worker in sharing
        ]
        for position, worker in enumerate(sharing):
            store = stores.get(worker.host_id)
            is_prefilling = worker.role is WorkerRole.PREFILL or not has_prefill
            if store is not None and (is_prefilling or self._settings.local_prefill == "auto"):
                keys = [
                    redis_keys.blocks(store.worker_id, store.epoch, tier)
                    for tier in (IndexTier.CPU, IndexTier.NVME)
                ]
                groups.append(SetGroup(tuple(keys), start=position))
        return groups

    def _count_as_load(self, request: RoutingRequest, comparison: Comparison) -> None:
        """Count the choice as load of its workers."""
        chosen, decode, prefill = comparison.chosen, comparison.decode, comparison.prefill
        if chosen is None or decode is None:
            return
        num_blocks = math.ceil(decode.blocks_for(request.num_prompt_tokens))
        self._pending_loads.add(
            decode.worker_id,
            PendingLoad(
                num_sequences=1,
                num_prefill_tokens=0 if prefill else chosen.num_miss_tokens,
                num_context_tokens=request.num_prompt_tokens,
                num_blocks=num_blocks,
            ),
        )
        if prefill is not None:
            self._pending_loads.add(
                prefill.worker_id,
                PendingLoad(
                    num_sequences=1,
                    num_prefill_tokens=chosen.num_miss_tokens,
                    num_blocks=num_blocks,
                ),
            )


def _explain(span: Span, request: RoutingRequest, comparison: Comparison) -> None:
    span.set_attribute("pagoda.request_id", request.request_id)
    span.set_attribute("pagoda.route.outcome", comparison.outcome.value)
    span.set_attribute("pagoda.route.candidates", codec.explain(comparison))
    if comparison.message:
        span.set_attribute("pagoda.route.message", comparison.message)
    chosen = comparison.chosen
    if chosen is not None:
        span.set_attribute("pagoda.route.decode_worker_id", chosen.decode_worker_id)
        span.set_attribute("pagoda.route.prefill_worker_id", chosen.prefill_worker_id)
        span.set_attribute("pagoda.route.predicted_ttft_ms", chosen.ttft_ms)
        span.set_attribute("pagoda.route.predicted_tpot_ms", chosen.tpot_ms)
    if comparison.margin_ms is not None:
        span.set_attribute("pagoda.route.margin_ms", comparison.margin_ms)
