"""Prometheus metrics of one process, in one registry. Names: pagoda_<noun>_<unit>."""

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    Counter,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import REGISTRY

__all__ = [
    "BUS_DROPPED",
    "BUS_HANDLER_ERRORS",
    "BUS_RECONNECTS",
    "BUS_SHED",
    "REGISTRY",
    "render",
]

# Without: a second series for each counter, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]

BUS_DROPPED = Counter(
    "pagoda_bus_dropped_messages", "Messages dropped because a subscriber was too slow", ["kind"]
)
BUS_HANDLER_ERRORS = Counter("pagoda_bus_handler_errors", "Messages whose handler raised", ["kind"])
BUS_SHED = Counter(
    "pagoda_bus_shed_requests",
    "Requests that were not served: expired (the caller gave up), or full (too many are waiting)",
    ["kind", "reason"],
)
BUS_RECONNECTS = Counter("pagoda_bus_reconnects", "Times the NATS connection was re-established")


def render() -> tuple[bytes, str]:
    """Return the exposition and its content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
