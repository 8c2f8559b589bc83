"""The router's Prometheus metrics."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)

DECISIONS = Counter("pagoda_router_decisions", "Routing requests answered", ["outcome", "plan"])
DECISION_SECONDS = Histogram(
    "pagoda_router_decision_seconds", "Time to answer a routing request", buckets=_SECONDS
)
MATCH_SECONDS = Histogram(
    "pagoda_router_match_seconds", "Time to ask the prefix index", buckets=_SECONDS
)
UNMATCHED = Counter(
    "pagoda_router_unmatched_decisions", "Decisions without prefix affinity: Redis unavailable"
)
BREAKER_OPEN = Gauge(
    "pagoda_router_redis_breaker_open", "1 while the prefix index is not asked because it failed"
)
EVENTS_APPLIED = Counter("pagoda_router_events_applied", "KV events written to the index")
EVENTS_IGNORED = Counter(
    "pagoda_router_events_ignored", "KV events of outdated epochs, or applied before"
)
EVENTS_FORGOTTEN = Counter(
    "pagoda_router_events_forgotten", "KV events whose blocks were not noted: the index is full"
)
EVENT_GAPS = Counter("pagoda_router_event_gaps", "Times that KV events of a worker were missing")
SNAPSHOTS_ASKED = Counter(
    "pagoda_router_snapshots_asked", "Times that a worker was asked for all the blocks it holds"
)
INDEX_INCOMPLETE = Gauge(
    "pagoda_router_index_incomplete_workers", "Workers whose blocks the index does not all know"
)
INDEX_FULL = Gauge("pagoda_router_index_full", "1 while the index takes no further blocks")
INDEX_BLOCKS = Gauge(
    "pagoda_router_index_blocks", "Blocks in the index, all alive workers", ["tier"]
)
WORKERS = Gauge("pagoda_router_workers", "Workers alive", ["role"])
