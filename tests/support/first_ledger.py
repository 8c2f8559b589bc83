"""The ledger's tables as gateways made them before there were revisions, and something in them."""

import sqlalchemy as sa
from sqlalchemy import JSON, Column, Double, Float, ForeignKey, Index, Integer, String, Table

from pagoda_gateway.accounts.keys import hash_key

FIRST_METADATA = sa.MetaData()

Table(
    "tenants",
    FIRST_METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("created_unix_seconds", Double, nullable=False),
)
Table(
    "api_keys",
    FIRST_METADATA,
    Column("api_key_id", String(32), primary_key=True),
    Column("tenant", String(128), ForeignKey("tenants.tenant"), nullable=False),
    Column("key_hash", String(64), nullable=False, unique=True),
    Column("label", String(128), nullable=False),
    Column("created_unix_seconds", Double, nullable=False),
    Column("revoked_unix_seconds", Double),
)
Table(
    "usage",
    FIRST_METADATA,
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
Table(
    "request_names",
    FIRST_METADATA,
    Column("request_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("client_request_id", String(64), nullable=False),
    Index("request_names_by_client", "tenant", "client_request_id"),
)

_ROWS = {
    "tenants": [{"tenant": "default", "created_unix_seconds": 1.0}],
    "api_keys": [
        {
            "api_key_id": name,
            "tenant": "default",
            "key_hash": hash_key(secret),
            "label": "bootstrap",
            "created_unix_seconds": 2.0,
            "revoked_unix_seconds": revoked,
        }
        for name, secret, revoked in (("key-old", "sk-old", None), ("key-gone", "sk-gone", 3.0))
    ],
    "usage": [
        {
            "request_id": "r",
            "object_id": "chatcmpl-r",
            "tenant": "default",
            "model": "m",
            "endpoint": "chat.completions",
            "opened_unix_seconds": 5.0,
            "prompt_tokens": 10,
            "cached_device_tokens": 4,
            "cached_cpu_tokens": 0,
            "cached_nvme_tokens": 2,
            "output_tokens": 3,
            "finish_reasons": ["stop"],
            "stages_ms": {"route": 1.5},
            "closed_unix_seconds": 6.0,
            "outcome": "finished",
        }
    ],
    "request_names": [{"request_id": "r", "tenant": "default", "client_request_id": "my-id"}],
}


def fill_first_ledger(engine: sa.Engine) -> None:
    """Store a key, one that is revoked, and a request with its receipt."""
    with engine.begin() as connection:
        for name, rows in _ROWS.items():
            connection.execute(sa.insert(FIRST_METADATA.tables[name]), rows)
