"""Settings of the gateway, `PAGODA_GATEWAY_*`. The port is the platform's: `PAGODA_HTTP_PORT`."""

import ipaddress
import re
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from pagoda_runtime.configuration.addresses import ENCODE, redis_address
from pagoda_runtime.configuration.settings import ModelName, ServiceSettings
from pagoda_runtime.configuration.values import MAX_SECONDS, Seconds

MIN_ADMIN_KEY_CHARS = 16
MAX_DAYS = 36_500
MIN_BODY_BUDGET_BYTES = 1 << 20  # an upload holds half of it, whatever its size
MIN_USAGE_LOG_BYTES = 1 << 20  # gateways send up to a quarter of it at once
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_USUAL_PORTS = {"http": 80, "https": 443}
_LEDGER_URL = re.compile(r"sqlite:///(?!:memory:).+|postgres(ql)?(\+psycopg)?://.+")


class GatewaySettings(ServiceSettings):
    """Limits, deadlines and the ledger's address. Never changed after the start."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_GATEWAY_")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    health_host: str = Field("127.0.0.1", description="Address of /healthz, /readyz and /metrics.")
    health_port: int | None = Field(
        None, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics; empty: none."
    )
    cors_origins: list[str] = Field(
        [],
        description="Origins of web pages that may call, as JSON, such as "
        '["https://chat.example"], each as browsers send it: scheme://host or scheme://host:port '
        'in lower case, or null; ["*"] is any.',
    )
    trusted_proxies: list[str] = Field(
        [],
        description="Addresses and networks of proxies, as JSON, such as "
        '["10.0.0.5", "fd00::/8"], whose X-Forwarded-For says where a request is from and whose '
        "X-Forwarded-Proto by which scheme; others' are not looked at.",
    )
    ledger_url: SecretStr = Field(
        SecretStr(""),
        description="Database of accounts and usage: postgresql://user:password@host/database, "
        "which replicas share, or sqlite:////path; empty = ledger.sqlite in PAGODA_HOME.",
    )
    bootstrap_api_key: SecretStr = Field(
        SecretStr(""),
        description="API key stored (hashed) for tenant 'default' at start; empty = none.",
    )
    models: dict[ModelName, str] = Field(
        {},
        max_length=32,
        description="Models to serve beside PAGODA_MODEL, as JSON of name and folder or hub name, "
        'such as {"qwen3-8b": "/models/qwen3-8b"}: read for tokenizer and template. Workers with '
        "that PAGODA_MODEL_NAME run them.",
    )
    admin_key: SecretStr = Field(
        SecretStr(""),
        description="Key of the administration (/admin), at least 16 characters; empty = none, and "
        "no such routes.",
    )
    max_body_bytes: int = Field(
        8 * 1024 * 1024,
        ge=1024,
        description="Largest request body, and the most that items of a kept conversation take.",
    )
    body_budget_bytes: int = Field(
        256 * 1024 * 1024,
        ge=MIN_BODY_BUDGET_BYTES,
        description="Bytes of all request bodies being read or prepared; beyond: 503. At least "
        "PAGODA_GATEWAY_MAX_BODY_BYTES.",
    )
    body_timeout_seconds: Seconds = Field(
        10.0,
        gt=0,
        description="A request body may take so long, and a second more for each 64 KiB it has.",
    )
    max_connections: int = Field(
        8192,
        ge=2,
        description="Open connections; one more closes the one that has waited longest without a "
        "request, if for a second at least; else it gets 503 with Retry-After. A low "
        "`ulimit -n` leaves room for fewer; the log says for how many.",
    )
    tool_format: Literal[
        "auto",
        "command_r7b",
        "deepseek",
        "gemma4",
        "glm",
        "granite",
        "harmony",
        "hermes",
        "kimi",
        "llama3",
        "mistral",
        "nemotron",
        "olmo3",
        "phi4_mini",
        "qwen3_coder",
        "seed_oss",
    ] = Field(
        "auto",
        description="How PAGODA_MODEL writes tool calls; auto, and other models: as the chat "
        "template shows.",
    )
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description="auto: a model's generation_config.json says what temperature, top_p, top_k, "
        "min_p, repetition_penalty and max_tokens are where requests do not; none: it counts for "
        "nothing.",
    )
    max_n: int = Field(16, ge=1, le=128, description="Largest n (choices for each prompt).")
    max_beam_width: int = Field(
        16, ge=1, le=128, description="Most beams of a search: the larger of its n and best_of."
    )
    max_sequences: int = Field(
        128,
        ge=1,
        description="Most sequences of one request: prompts times n or best_of. Inputs of "
        "embeddings may be 2048; so many run at a time.",
    )
    max_requests_in_flight: int = Field(
        1024,
        ge=1,
        description="Requests served at once; further ones get 503 with Retry-After. One "
        "tenant gets 429 at four times what is still free, so alone it holds four fifths.",
    )
    max_undelivered_tokens: int = Field(
        65536, ge=1, description="Tokens one request may hold for a slow reader before it is cut."
    )
    max_whole_tokens: int = Field(
        1_048_576,
        ge=1,
        description="Tokens that one answer which is no stream may have, log probabilities "
        "included; one that gets longer is a 400.",
    )
    response_store_bytes: int = Field(
        1 << 30,
        ge=0,
        description="Bytes of responses and conversations kept for their clients, in the ledger's "
        "database; beyond it the tenant that holds most loses its oldest. 0: none are kept.",
    )
    response_store_seconds: Seconds = Field(
        86_400.0,
        gt=0,
        description="How long a response is kept, and a conversation after a change.",
    )
    safety_file: Path | None = Field(
        None,
        description="YAML of policies: what tenants may ask and be answered, and whose answers are "
        "cached (docs/howto/safety.md); empty: none.",
    )
    response_cache_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Bytes of answers kept for equal requests of tenants whose policy has a "
        "response_cache; beyond it the tenant that holds most loses its oldest. A replica keeps "
        "its own.",
    )
    log_prompts: bool = Field(
        False, description="Write every prompt to the log, as the model sees it."
    )
    max_file_bytes: int = Field(
        200 << 20, ge=1024, description="Largest file that can be uploaded (/v1/files)."
    )
    tenant_file_bytes: int = Field(
        1 << 30,
        ge=1024,
        description="Bytes of files one tenant may keep, answers of its batches included.",
    )
    total_file_bytes: int = Field(
        4 << 30,
        ge=1024,
        description="Bytes of all files in the ledger's database.",
    )
    file_keep_seconds: int = Field(
        30 * 86_400,
        ge=3600,
        le=MAX_SECONDS,
        description="Files expire after so long, or earlier as their expires_after says.",
    )
    batch_max_lines: int = Field(50_000, ge=1, description="Most requests of one batch.")
    batch_concurrency: int = Field(
        8,
        ge=0,
        description="Requests of batches that this replica runs at once, in the background; "
        "0: none, others do.",
    )
    limits_redis_url: SecretStr = Field(
        SecretStr(""),
        description="Redis of the counters of limits, password included; its maxmemory-policy is "
        "noeviction, or volatile-ttl beside the prefix index. Empty: PAGODA_REDIS_URL.",
    )
    limits_without_redis: Literal["closed", "open"] = Field(
        "closed",
        description="While limits cannot be counted: closed refuses requests of whoever has "
        "limits (503), open lets them run and counts them later.",
    )
    limits_timeout_seconds: Seconds = Field(
        2.0, gt=0, description="Deadline of one question to the Redis of the limits."
    )
    limit_queue_requests: int = Field(
        64,
        ge=0,
        description="Requests of one tenant that wait at this replica for room in a limit whose "
        "tier says on_limit: queue; further ones get 429.",
    )
    limit_queue_seconds: Seconds = Field(
        30.0, ge=0, description="How long such a request waits; what takes longer is a 429 at once."
    )
    keepalive_seconds: Seconds = Field(
        5.0, gt=0, description="A waiting stream gets an SSE comment or a ping this often."
    )
    request_timeout_seconds: Seconds = Field(
        600.0, gt=0, description="Deadline of a request, from its arrival to its last token."
    )
    route_timeout_seconds: Seconds = Field(
        2.0, gt=0, le=30, description="Deadline of one routing request."
    )
    router_wait_seconds: Seconds = Field(
        10.0, ge=0, description="How long a request waits for a router that does not answer."
    )
    admit_timeout_seconds: Seconds = Field(
        5.0, gt=0, le=30, description="Deadline of one hand-over of a sequence to a decode worker."
    )
    usage_timeout_seconds: Seconds = Field(
        10.0,
        gt=0,
        description="Deadline of one write to the outbox, and of one from there to NATS, which is "
        "tried again.",
    )
    outbox_dir: Path | None = Field(
        None,
        description="Folder on this host's disk for usage records that NATS does not have yet; "
        "replicas may share it. Empty: outbox in PAGODA_HOME.",
    )
    outbox_bytes: int = Field(
        256 << 20,
        ge=1024,
        description="Most bytes of usage records that wait in this replica's outbox; beyond it "
        "requests get 503.",
    )
    reconcile_seconds: Seconds = Field(
        30.0,
        gt=0,
        description="What a gateway left open is closed, by what it noted and by workers' "
        "records, when nothing was heard of it for so long (by the applier).",
    )
    usage_log_bytes: int = Field(
        4 << 30,
        ge=MIN_USAGE_LOG_BYTES,
        description="Most bytes of usage records that wait in NATS to be applied; beyond it they "
        "wait in outboxes. NATS keeps room for them on its disk: less where it has less, and "
        "`pagoda up` takes at most a quarter of what is free.",
    )
    prefix_memory_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Recent prompts kept in memory, to say why one was not in the cache; 0: none, "
        "and nothing is said.",
    )
    prefix_tenant_bytes: int = Field(
        8 * 1024 * 1024, ge=65536, description="Of these, most of one tenant."
    )
    gap_timeout_seconds: Seconds = Field(
        3.0,
        gt=0,
        description="A hole in a sequence's tokens that lasts this long starts a new attempt.",
    )
    silence_seconds: Seconds = Field(
        1.5,
        gt=0,
        description="A sequence of which nothing was heard for so long is asked for at its worker, "
        "which has as long to answer, 30 s at most.",
    )
    failover_wait_seconds: Seconds = Field(
        30.0, ge=0, description="How long a sequence that lost its worker waits for another one."
    )
    max_attempts: int = Field(
        3, ge=1, le=10, description="Attempts of one sequence, the first included."
    )
    receipt_wait_seconds: Seconds = Field(
        3.0, ge=0, description="How long a receipt waits for a close record that is on its way."
    )
    usage_keep_days: int = Field(
        0,
        ge=0,
        le=MAX_DAYS,
        description="Receipts are forgotten after so many days, sums by day never; 0: none is. "
        "Longer than usage records may wait: one of a forgotten receipt that comes again counts "
        "again.",
    )
    request_name_keep_days: int = Field(
        30,
        ge=0,
        le=MAX_DAYS,
        description="So many days a receipt is found by the x-request-id of the client; 0: always.",
    )
    drain_seconds: Seconds = Field(
        30.0,
        ge=0,
        description="After SIGTERM: how long requests in flight may go on; `pagoda up` sets 3.",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _check_trusted_proxies(cls, proxies: list[str]) -> list[str]:
        for text in proxies:
            ipaddress.ip_network(text)  # which says what is wrong with it
        return proxies

    @field_validator("cors_origins")
    @classmethod
    def _check_cors_origins(cls, origins: list[str]) -> list[str]:
        for text in origins:
            meant = _origin_of(text)
            if text not in ("*", "null", meant):
                hint = f': did you mean "{meant}"?' if meant else ""
                raise ValueError(
                    f"no page has the origin {text!r}{hint}; give scheme://host or "
                    "scheme://host:port in lower case, without a path, as browsers send it"
                )
        return origins

    @field_validator("ledger_url")
    @classmethod
    def _check_ledger_url(cls, url: SecretStr) -> SecretStr:
        if url.get_secret_value() and not _is_ledger_url(url.get_secret_value()):
            raise ValueError(
                "give postgresql://user:password@host:5432/database, the port from 1 to 65535, "
                f"{ENCODE}; or sqlite:////absolute/path"
            )
        return url

    @field_validator("safety_file")
    @classmethod
    def _check_safety_file(cls, file: Path | None) -> Path | None:
        if file is not None and not file.is_file():
            raise ValueError("there is no such file: name one that can be read, or set it empty")
        return file

    @field_validator("limits_redis_url")
    @classmethod
    def _check_limits_redis_url(cls, url: SecretStr) -> SecretStr:
        if url.get_secret_value():
            redis_address(url.get_secret_value())
        return url

    @field_validator("admin_key")
    @classmethod
    def _check_admin_key(cls, key: SecretStr) -> SecretStr:
        if 0 < len(key.get_secret_value()) < MIN_ADMIN_KEY_CHARS:
            raise ValueError(
                f"{len(key.get_secret_value())} characters can be guessed; give "
                f"{MIN_ADMIN_KEY_CHARS} or more"
            )
        return key

    @model_validator(mode="after")
    def _check_sums(self) -> "GatewaySettings":
        if self.body_budget_bytes < self.max_body_bytes:
            raise ValueError(
                f"PAGODA_GATEWAY_BODY_BUDGET_BYTES is {self.body_budget_bytes}, must be at least "
                f"PAGODA_GATEWAY_MAX_BODY_BYTES ({self.max_body_bytes}), or the largest bodies "
                "could never be read: raise the one or lower the other"
            )
        return self

    def limits_address(self, common_url: str) -> str:
        """Return the URL of the Redis that counts; `common_url` is the platform's."""
        return self.limits_redis_url.get_secret_value() or common_url

    def described_without_limits(self, problem: str) -> str:
        """Return what it means for requests that limits cannot be counted; "" if they can."""
        if not problem:
            return ""
        effect = "get 503" if self.limits_without_redis == "closed" else "run uncounted for now"
        return f"{problem}; requests of keys with limits {effect}"

    def outbox_folder(self, home: Path) -> Path:
        """Return where outboxes of this host lie; `home` is where they lie by default."""
        return self.outbox_dir or home / "outbox"

    def ledger_address(self, home: Path) -> str:
        """Return the ledger's SQLAlchemy URL; `home` is where its SQLite file lies by default."""
        if given := self.ledger_url.get_secret_value():
            return given
        # a path's own % and ? would be read as parts of a URL
        path = quote(str(home / "ledger.sqlite"), safe="/ +")
        return f"sqlite:///{path}"


def _origin_of(text: str) -> str | None:
    """Return the origin that a page of this URL, or on this host, has; None if there is none."""
    try:
        url = urlsplit(text if "://" in text else f"https://{text}")
        host, port = url.hostname or "", url.port
    except ValueError:  # a port that is no number
        return None
    host = f"[{host}]" if ":" in host else host
    is_usual = port is None or port == _USUAL_PORTS.get(url.scheme)  # browsers leave it out
    origin = f"{url.scheme}://{host}" if is_usual else f"{url.scheme}://{host}:{port}"
    return origin if _ORIGIN.fullmatch(origin) else None


def _is_ledger_url(url: str) -> bool:
    if not _LEDGER_URL.fullmatch(url):
        return False
    # imported here: the command line knows these settings, and starts in less time without it
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # a port that is no number
        return False
    is_port = address.port is None or 0 < address.port < 65536
    # of several @ the first one ends the password: the rest would be a host
    return is_port and "@" not in (address.host or "")
