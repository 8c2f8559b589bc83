"""Prometheus metrics of one worker."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pagoda_engine import StepStats
from pagoda_runtime.telemetry.metrics import REGISTRY
from pagoda_runtime.telemetry.plain_histogram import PlainHistogram

STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
STEP_PARTS = ("schedule", "launch", "forward", "sample", "wait", "commit", "gap", "publish")
PART_BUCKETS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, *STEP_BUCKETS)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """All of them. One instance per registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        self.num_requests_waiting = Gauge(
            "pagoda_num_requests_waiting", "Sequences not yet admitted", registry=registry
        )
        self.num_requests_running = Gauge(
            "pagoda_num_requests_running", "Sequences in the batch", registry=registry
        )
        self.kv_cache_usage_ratio = Gauge(
            "pagoda_kv_cache_usage_ratio",
            "Share of KV blocks that somebody holds",
            registry=registry,
        )
        self.num_free_blocks = Gauge(
            "pagoda_kv_free_blocks", "KV blocks that nobody holds", registry=registry
        )
        self.kv_pool_bytes = Gauge(
            "pagoda_kv_pool_bytes", "Bytes of all KV blocks, held or free", registry=registry
        )
        self.unclaimed_seconds = Counter(
            "pagoda_step_unclaimed_seconds",
            "Time of steps whose sequences had all ended meanwhile: no request's",
            registry=registry,
        )
        self.usage_records_dropped = Counter(
            "pagoda_usage_records_dropped",
            "Records of sequences' usage that found no room while NATS took none",
            registry=registry,
        )
        self.num_leases = Gauge("pagoda_kv_leases", "Open leases", registry=registry)
        self.leases_settled = Counter(
            "pagoda_kv_leases_settled", "Leases by their end", ["outcome"], registry=registry
        )
        self.step_seconds = PlainHistogram(
            "pagoda_step_seconds",
            "What one step added to the time of a busy engine: device work and the gap before it",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self.step_part_seconds = PlainHistogram(
            "pagoda_step_part_seconds",
            "Parts of one step; forward, sample and gap are the device's, the others the host's",
            "part",
            buckets=PART_BUCKETS,
            registry=registry,
        )
        self.steps = Counter(
            "pagoda_steps", "Steps, by graph (replayed) or eager", ["mode"], registry=registry
        )
        self.step_sequences = PlainHistogram(
            "pagoda_step_sequences",
            "Sequences in one step",
            buckets=BATCH_BUCKETS,
            registry=registry,
        )
        self.startup_seconds = Gauge(
            "pagoda_startup_seconds", "Time of one phase of the start", ["phase"], registry=registry
        )
        self.stage_seconds = Histogram(
            "pagoda_stage_seconds",
            "Time in a stage",
            ["stage"],
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self.prefill_tokens = Counter(
            "pagoda_prefill_tokens",
            "Prompt tokens computed, each once on this worker",
            registry=registry,
        )
        self.other_prefill_tokens = Counter(
            "pagoda_other_prefill_tokens",
            "Tokens computed as a prompt's are, but again (after a preemption or a failover), or "
            "because a grammar forced them",
            ["cause"],
            registry=registry,
        )
        self._resumed_tokens = self.other_prefill_tokens.labels("preemption")
        self._failed_over_tokens = self.other_prefill_tokens.labels("failover")
        self._forced_tokens = self.other_prefill_tokens.labels("grammar")
        self.decode_tokens = Counter("pagoda_decode_tokens", "Output tokens", registry=registry)
        self.proposed_tokens = Counter(
            "pagoda_speculation_proposed_tokens", "Proposed tokens verified", registry=registry
        )
        self.accepted_tokens = Counter(
            "pagoda_speculation_accepted_tokens",
            "Proposed tokens that were right",
            registry=registry,
        )
        self.draft_seconds = Counter(
            "pagoda_speculation_draft_seconds",
            "Time in which a draft model proposed tokens or computed prompts",
            registry=registry,
        )
        self.given_up_seconds = Counter(
            "pagoda_given_up_seconds",
            "Computed in steps that were cut short for another tenant's newcomer, and lost",
            registry=registry,
        )
        self.preemptions = Counter("pagoda_preemptions", "Sequences preempted", registry=registry)
        self.resumptions = Counter(
            "pagoda_resumptions",
            "Preempted sequences that have blocks again, by how these are filled",
            ["choice"],
            registry=registry,
        )
        self.sequences_ended = Counter(
            "pagoda_sequences_ended", "Sequences by finish reason", ["reason"], registry=registry
        )
        self.local_fallbacks = Counter(
            "pagoda_local_prefill_fallbacks",
            "Prefills that were planned elsewhere and happened here",
            ["outcome"],
            registry=registry,
        )
        self.transfer_bytes = Counter(
            "pagoda_kv_transfer_bytes", "KV sent or received", ["direction"], registry=registry
        )
        self.transfer_bytes_per_second = Gauge(
            "pagoda_kv_transfer_bytes_per_second", "KV sent, while sending", registry=registry
        )
        self.bad_digests = Counter(
            "pagoda_kv_bad_digests", "KV blocks that arrived damaged", ["source"], registry=registry
        )
        self.fetched_blocks = Counter(
            "pagoda_kv_fetched_blocks", "KV blocks from the kvstore", ["tier"], registry=registry
        )
        self.write_through_dropped = Counter(
            "pagoda_kv_write_through_dropped_blocks",
            "KV blocks that were not written to the kvstore",
            registry=registry,
        )
        self.frames_dropped = Counter(
            "pagoda_frames_dropped", "Frames that could not be published", registry=registry
        )

    def count_step(self, stats: StepStats) -> None:
        """Count what a step computed."""
        for counter, amount in (
            (self.unclaimed_seconds, stats.unclaimed_ns / 1e9),
            (self.prefill_tokens, stats.num_prompt_tokens),
            (self._resumed_tokens, stats.num_resumed_tokens),
            (self._failed_over_tokens, stats.num_failed_over_tokens),
            (self._forced_tokens, stats.num_forced_tokens),
            (self.proposed_tokens, stats.num_proposed_tokens),
            (self.draft_seconds, stats.draft_seconds),
            (self.accepted_tokens, stats.num_accepted_tokens),
        ):
            if amount:
                counter.inc(amount)
