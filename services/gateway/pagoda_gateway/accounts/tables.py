"""Tables of usage. SQLite embedded, PostgreSQL in production: only what both have.

A change here needs a revision in `migrations/versions/`; a test compares them.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
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

# Few rows at a time: those that are open, or lines of batches that failed.
_IS_NOT_SEALED = text("receipt_number IS NULL")
_NOT_SEALED: dict[str, Any] = {
    "sqlite_where": _IS_NOT_SEALED,
    "postgresql_where": _IS_NOT_SEALED,
}

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
    Column("is_cached_answer", Boolean),  # null in rows of older versions
    Column("safety_findings", JSON),  # "policy/rule action direction"
    Column("proposed_tokens", Integer),  # by speculation; null in rows of older versions
    Column("accepted_tokens", Integer),
    Column("prefix_class", String(32)),  # null: as much was cached as could be
    Column("prefix_place", String(64)),
    Column("prefix_lost_tokens", Integer),
    Column("prefix_lost_micros", BigInteger),  # null: no price was known
    Column("prefix", JSON(none_as_null=True)),  # see `accounts.prefixes.rows`
    Column("price_id", String(32)),  # empty: the model had no price; null: nobody said
    # Written once, when the row is sealed (`money.sealing`): from then on it stays as it is.
    Column("cost_micros", BigInteger),
    Column("price_lines", JSON(none_as_null=True)),
    Column("receipt_number", BigInteger),  # in its tenant's chain, from 1 on
    Column("previous_hash", String(64)),
    Column("receipt_hash", String(64)),
    Index("usage_by_tenant", "tenant", "opened_unix_seconds"),
    Index("usage_by_object", "object_id"),
    Index("usage_by_number", "tenant", "receipt_number", unique=True),
    Index("usage_not_sealed", "opened_unix_seconds", **_NOT_SEALED),
    Index(
        "usage_by_prefix_miss",
        "closed_unix_seconds",
        sqlite_where=text("prefix_lost_tokens > 0"),
        postgresql_where=text("prefix_lost_tokens > 0"),
    ),
    Index("usage_open", "gateway_id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
)

# What clients call a request (their own x-request-id) -> what we call it. Several may share a name.
REQUEST_NAMES = Table(
    "request_names",
    METADATA,
    Column("request_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("client_request_id", String(64), nullable=False),
    Index("request_names_by_client_and_id", "tenant", "client_request_id", "request_id"),
)
