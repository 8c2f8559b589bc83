"""Settings of the router: PAGODA_ROUTER_*."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagoda_runtime.configuration.settings import ServiceSettings
from pagoda_runtime.configuration.values import MAX_SECONDS, Seconds

MAX_MS = 3_600_000.0
MAX_TOKENS_PER_SECOND, MIN_TOKENS_PER_SECOND = 1e9, 0.001
MAX_BYTES_PER_SECOND, MIN_BYTES_PER_SECOND = 1e15, 1.0
MAX_WARM_UP_SECONDS = 600.0


class RouterSettings(ServiceSettings):
    """What the router assumes before workers measured it, and how long it waits and remembers."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_ROUTER_")

    health_host: str = Field("127.0.0.1", description="Address of /healthz, /readyz and /metrics")
    health_port: int = Field(
        8102, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics"
    )

    prior_prefill_tokens_per_second: float = Field(
        2000.0,
        ge=MIN_TOKENS_PER_SECOND,
        le=MAX_TOKENS_PER_SECOND,
        description="Prefill speed of a worker that has not measured its own",
    )
    prior_step_base_ms: float = Field(
        20.0,
        ge=0,
        le=MAX_MS,
        description="Decode step time without sequences, before a worker measured it",
    )
    prior_step_per_sequence_ms: float = Field(
        1.0,
        ge=0,
        le=MAX_MS,
        description="Decode step time added by a sequence, before a worker measured it",
    )
    prior_step_per_context_token_ms: float = Field(
        0.001,
        ge=0,
        le=MAX_MS,
        description="Decode step time added by a context token, before measured",
    )
    prior_transfer_bytes_per_second: float = Field(
        1e9,
        ge=MIN_BYTES_PER_SECOND,
        le=MAX_BYTES_PER_SECOND,
        description="KV transfer speed between workers, before a worker measured it",
    )
    prior_fetch_bytes_per_second: float = Field(
        1e9,
        ge=MIN_BYTES_PER_SECOND,
        le=MAX_BYTES_PER_SECOND,
        description="KV fetch speed from a kvstore, before a worker measured it",
    )

    fetch_base_ms: float = Field(
        2.0,
        ge=0,
        le=MAX_MS,
        description="Fixed cost of one fetch from a kvstore, added to its transfer time",
    )
    expected_output_tokens: int = Field(
        64, ge=1, description="Output tokens that count in a plan's cost, at most max_tokens"
    )
    load_factor: float = Field(
        1.5,
        ge=1.0,
        le=1000.0,
        description="A worker takes at most this many times its share of the sequences",
    )
    min_load_bound: int = Field(
        4, ge=1, description="A worker with fewer sequences than this is never over its share"
    )

    redis_timeout_seconds: float = Field(
        0.05, gt=0, le=0.05, description="Longest wait for the prefix index in a decision"
    )
    breaker_seconds: Seconds = Field(
        1.0, gt=0, description="Time without asking Redis after it failed twice in a row"
    )
    index_ttl_seconds: int = Field(
        120,
        ge=10,
        le=MAX_SECONDS,
        description="Index entries of workers that are gone expire after this time",
    )
    index_check_seconds: Seconds = Field(
        1.0, gt=0, description="How often to look what the index lacks"
    )
    index_max_bytes: int = Field(
        768 << 20,
        ge=1 << 20,
        description="Memory of Redis that the index may take, bytes; below Redis' maxmemory",
    )
    in_flight_seconds: Seconds = Field(
        1.0, gt=0, description="A choice counts as load at most this long before workers report it"
    )
    settle_seconds: Seconds = Field(
        0.1, ge=0, description="A heartbeat this long after a choice includes it"
    )
    warm_up_seconds: float = Field(
        0.5,
        ge=0,
        le=MAX_WARM_UP_SECONDS,
        description="Time to hear of workers before taking requests",
    )
    max_concurrent: int = Field(
        32, ge=1, le=256, description="Decisions at the same time, each with a connection to Redis"
    )
