"""Tables of usage. SQLite embedded, PostgreSQL in production: only what both have.

A change here needs a revision in `migrations/versions/`; a test compares them.
"""

from sqlalchemy import (
    JSON,
    Column,
    Double,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    text,
)

METADATA = MetaData()
_IS_OPEN = text("closed_unix_seconds IS NULL")

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
    Column("num_choices", Integer),  # of each prompt; null in rows of older versions
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
    Index("usage_by_object", "object_id"),
    Index("usage_open", "gateway_id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
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
