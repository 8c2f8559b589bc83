"""What all sequences of one request share: who asked for what, and until when."""

import asyncio
import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from opentelemetry.context import Context

from pagoda.rpc.v1.route_pb2 import RouteResponse
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.served_model import ServedModel
from pagoda_runtime.messaging.asked import Asked

EndpointName = Literal["chat.completions", "completions", "embeddings", "messages", "responses"]
ServiceTier = Literal["default", "batch"]

_TAG_BYTES = 8
MAX_TAGS = 4096  # of tenants whose requests came lately


@functools.lru_cache(MAX_TAGS)
def tenant_tag(tenant: str) -> bytes:
    """Return what workers know a tenant by: the same from every gateway, and not its name."""
    return hashlib.blake2b(tenant.encode(), digest_size=_TAG_BYTES, person=b"pagoda.tag").digest()


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Who asks for what.

    Attributes:
        request_id: ours (ULID).
        client_request_id: what the client calls it; empty if it does not.
        object_id: the id in the answer.
        endpoint: which one.
        tenant: whose account and cache.
        api_key_id: which of the tenant's keys.
        arrived_unix_seconds: when the request came.
        tokenize_ms: spent on template, tokens and hashes.
        priority: of its sequences in the workers' queues; lower goes first.
        service_tier: "batch" for a line of a batch, which runs in the background.
        price_id: the price that the request came in under; empty: its model has none.
        weight: of the tenant's share of a worker, beside 1 of others.
        arrived_seconds: when the request came by the monotonic clock, which nobody sets.
    """

    request_id: str
    client_request_id: str
    object_id: str
    endpoint: EndpointName
    tenant: str
    api_key_id: str
    arrived_unix_seconds: float
    tokenize_ms: float
    priority: int
    service_tier: ServiceTier = "default"
    price_id: str = ""
    weight: float = 1.0
    arrived_seconds: float = field(default_factory=time.monotonic)

    @property
    def shown_id(self) -> str:
        """What the client knows it by: an id of its own, or ours."""
        return self.client_request_id or self.request_id


class AskedAhead(NamedTuple):
    """A question to the router that nobody waits for yet.

    Attributes:
        started: when it was asked (`time.perf_counter`).
        asked: has the answer; closed by whoever asked, if nobody has awaited it.
    """

    started: float
    asked: Asked[RouteResponse]


@dataclass(slots=True)
class RequestContext:
    """What a request's sequences need on their way to the workers.

    Attributes:
        request_id: ours.
        model: whose workers are meant.
        priority: see `RequestIdentity`.
        tenant_tag: whose it is, as workers are told, who share themselves among tenants.
        weight: see `RequestIdentity`.
        deadline: nothing goes on after this, by the event loop's clock.
        trace_context: of gateway.request.
        on_route: hears each routing answer, its attempt and its milliseconds.
        on_asking: hears that a worker is asked next, in the same turn of the event loop.
        cancel_reason: sent to the worker when a sequence is cancelled.
        worker_ids: decode workers that were asked, in that order.
        accepted: indices of sequences that a worker has accepted, whatever came of it.
        asked_ahead: has the router's answer for the first sequence. Whoever takes it out awaits it.
        placements: of each prompt's first choice, by the prompt's identity: the others follow it.
            None if it could not be placed.
    """

    request_id: str
    model: ServedModel
    priority: int
    deadline: float
    trace_context: Context
    on_route: Callable[[OutputSequence, RouteResponse, float], None]
    on_asking: Callable[[], None]
    tenant_tag: bytes = b""
    weight: float = 1.0
    cancel_reason: str = "client_disconnect"
    worker_ids: list[str] = field(default_factory=list)
    accepted: set[int] = field(default_factory=set)
    asked_ahead: AskedAhead | None = None
    placements: "dict[int, asyncio.Future[RouteResponse | None]]" = field(default_factory=dict)
