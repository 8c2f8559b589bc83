"""The store's own counts as Prometheus metrics, read when they are scraped."""

import contextlib
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector

from pagoda_kvstore.store import BlockStore

_GAUGES = {
    "num_blocks": ("pagoda_kvstore_blocks", "Blocks held"),
    "used_bytes": ("pagoda_kvstore_used_bytes", "Bytes in use, headers and bookkeeping included"),
    "budget_bytes": ("pagoda_kvstore_budget_bytes", "Hard limit of used bytes"),
}
_COUNTERS = {
    "num_hits": ("pagoda_kvstore_hits", "Blocks found"),
    "num_misses": ("pagoda_kvstore_misses", "Lookups that ended at a missing block"),
    "num_evictions": ("pagoda_kvstore_evictions", "Blocks evicted for room"),
    "num_bad_digests": ("pagoda_kvstore_bad_digests", "Blocks found damaged and dropped"),
}


class StoreCollector(Collector):
    """Metrics of one store."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Return every metric as of now."""
        stats = self._store.stats()
        for field, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["tier"])
            for tier in stats:
                gauge.add_metric([tier.tier.value], getattr(tier, field))
            yield gauge
        for field, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["tier"])
            for tier in stats:
                counter.add_metric([tier.tier.value], getattr(tier, field))
            yield counter
        nvme, writes = self._store.nvme, self._store.writes
        yield CounterMetricFamily(
            "pagoda_kvstore_refused_digests",
            "Put blocks refused because of their digest",
            value=self._store.num_refused_digests,
        )
        yield CounterMetricFamily(
            "pagoda_kvstore_dropped_writes",
            "Blocks not written to NVMe: queue full, no room, or an I/O error",
            value=writes.num_dropped + nvme.num_dropped,
        )
        yield CounterMetricFamily(
            "pagoda_kvstore_io_errors",
            "Reads and writes of NVMe segments that failed",
            value=nvme.num_read_errors + nvme.device.num_errors,
        )
        yield GaugeMetricFamily(
            "pagoda_kvstore_queued_bytes",
            "Blocks waiting to be written to NVMe",
            value=writes.queued_bytes,
        )
        yield GaugeMetricFamily(
            "pagoda_kvstore_refused_segments",
            "Files in the NVMe folder that are no usable segments",
            value=nvme.num_refused_segments,
        )


@contextlib.contextmanager
def registered(store: BlockStore) -> Iterator[None]:
    """Export the store's metrics while the context lasts."""
    collector = StoreCollector(store)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)
