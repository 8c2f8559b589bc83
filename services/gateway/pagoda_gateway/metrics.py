"""What the gateway counts. One registry per process, so these are made once.

The applier must not import this: it has its own (`accounts/usage/applier_metrics.py`).
"""

from prometheus_client import Counter, Gauge, Histogram

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)

RESPONSES = Counter(
    "pagoda_http_responses",
    "Answers by route and HTTP status; none of what only has a line of a batch wait",
    ["route", "status"],
)
CONNECTIONS_OVER_LIMIT = Counter(
    "pagoda_http_connections_over_limit",
    "Connections beyond the limit, by what was done: closed: another one that waited without a "
    "request; refused: the new one, with 503",
    ["action"],
)
REQUESTS = Counter(
    "pagoda_requests",
    "Generation requests that got past validation, by how they ended; refused: by a limit or a "
    "policy; not lines of batches that wait",
    ["endpoint", "outcome"],
)  # fmt: skip
DECODE_WORKERS = Gauge(
    "pagoda_model_decode_workers", "Decode workers alive that serve the model", ["model"]
)
IN_FLIGHT = Gauge("pagoda_num_requests_in_flight", "Generation requests being served now")
TTFT = Histogram(
    "pagoda_time_to_first_token_seconds", "Arrival to first token", buckets=_TTFT_BUCKETS
)
TPOT = Histogram(
    "pagoda_time_per_output_token_seconds",
    "Time between a sequence's tokens, averaged over the sequence",
    buckets=_TPOT_BUCKETS,
)
E2E = Histogram(
    "pagoda_request_seconds",
    "Arrival to the end of the answer, of requests that no limit and no policy refused",
    buckets=_E2E_BUCKETS,
)
INPUT_TOKENS = Counter("pagoda_input_tokens", "Prompt tokens of requests")
CACHED_TOKENS = Counter("pagoda_cached_tokens", "Prompt tokens whose KV was reused", ["tier"])
OUTPUT_TOKENS = Counter("pagoda_output_tokens", "Output tokens delivered to clients")
ATTEMPTS = Counter(
    "pagoda_retried_attempts", "Attempts after a sequence's first, by cause", ["cause"]
)
PREFIX_MISSED_TOKENS = Counter(
    "pagoda_gateway_prefix_missed_tokens",
    "Prompt tokens that were computed although an earlier prompt could have spared them, by why",
    ["class"],
)
PREFIXES_UNEXPLAINED = Counter(
    "pagoda_gateway_prefixes_unexplained",
    "Prompts whose prefix was not looked into, as too many others were",
)
USAGE_FAILURES = Counter(
    "pagoda_usage_log_failures", "Usage records that were refused (open) or late (close)", ["kind"]
)
OUTBOX_BYTES = Gauge("pagoda_outbox_bytes", "Bytes of usage records that NATS does not have yet")
OUTBOX_COMMIT_SECONDS = Histogram(
    "pagoda_outbox_commit_seconds", "Writing and syncing what waited, at once",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2, 10),
)  # fmt: skip
ADOPTED_OUTBOXES = Counter("pagoda_adopted_outboxes", "Outboxes of dead gateways that were sent")
BATCHES = Gauge("pagoda_num_batches_running", "Batches that this replica works on")
BATCH_LINES = Counter("pagoda_batch_lines", "Lines of batches that got their answer", ["outcome"])
SILENT_SEQUENCES = Counter(
    "pagoda_silent_sequences", "Attempts given up because no frame came and no worker had them"
)
SAFETY_MATCHES = Counter(
    "pagoda_safety_matches", "Texts that rules of policies matched",
    ["policy", "rule", "action", "direction"],
)  # fmt: skip
MODERATOR_FAILURES = Counter(
    "pagoda_moderator_failures", "Texts that a moderator could not judge", ["moderator"]
)
CACHED_ANSWERS = Counter(
    "pagoda_response_cache", "Requests that could have been answered from the cache", ["result"]
)
LIMITED = Counter(
    "pagoda_limited_requests",
    "Requests refused because of a limit, by whose it was and which one; not lines of batches that "
    "wait",
    ["scope", "dimension"],
)
LIMITED_WAITS = Counter(
    "pagoda_limited_waits", "Requests that ran after they had waited for room in a limit"
)
LIMITS_FORGOTTEN = Counter(
    "pagoda_limits_forgotten_holds",
    "Holds that Redis never heard the end of, because it was away for too long",
)
