"""Tables of the ledger. SQLite embedded, PostgreSQL in production: only what both have."""

from sqlalchemy import (
    JSON,
    Column,
    Double,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
)

METADATA = MetaData()

TENANTS = Table(
    "tenants",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("created_unix_seconds", Double, nullable=False),
)

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("api_key_id", String(32), primary_key=True),
    Column("tenant", String(128), ForeignKey("tenants.tenant"), nullable=False),
    Column("key_hash", String(64), nullable=False, unique=True),  # BLAKE2b-256, never the key
    Column("label", String(128), nullable=False),
    Column("created_unix_seconds", Double, nullable=False),
    Column("revoked_unix_seconds", Double),
)

# One row for each request. The open record fills the first half, the close record the second; each
# is written once, in whatever order and however often the records come.
USAGE = Table(
    "usage",
    METADATA,
    Column("request_id", String(64), primary_key=True),
    Column("object_id", String(128)),
    Column("tenant", String(128)),
    Column("api_key_id", String(32)),
    Column("model", String(512)),
    Column("endpoint", String(64)),
    Column("max_output_tokens", Integer),
    Column("opened_prompt_tokens", Integer),
    Column("opened_unix_seconds", Double),
    Column("gateway_id", String(128)),
    Column("service_tier", String(16)),  # default | batch; null in rows of older versions
    Column("prompt_tokens", Integer),
    Column("cached_device_tokens", Integer),
    Column("cached_cpu_tokens", Integer),
    Column("cached_nvme_tokens", Integer),
    Column("output_tokens", Integer),
    Column("finish_reasons", JSON),
    Column("stages_ms", JSON),
    Column("ttft_ms", Float),
    Column("e2e_ms", Float),
    Column("attempts", Integer),
    Column("closed_unix_seconds", Double),
    Column("outcome", String(32)),
    Column("worker_ids", JSON),
    Index("usage_by_tenant", "tenant", "opened_unix_seconds"),
)

# What clients call a request (their own x-request-id) -> what we call it. Several may share a name.
REQUEST_NAMES = Table(
    "request_names",
    METADATA,
    Column("request_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("client_request_id", String(64), nullable=False),
    Index("request_names_by_client", "tenant", "client_request_id"),
)
