"""The table of what workers published and computed, and of what killed gateways noted.

A change here needs a revision in `accounts/migrations/versions/`; a test compares them.
"""

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table

from pagoda_gateway.accounts.tables import METADATA

# One row for each attempt of a sequence on each worker that had a part in it.
SEQUENCE_USAGE = Table(
    "sequence_usage",
    METADATA,
    Column("request_id", String(64), primary_key=True),
    Column("record_id", String(64), primary_key=True),
    Column("sequence_index", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker_id", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("first_index", Integer, nullable=False),
    Column("published_tokens", Integer, nullable=False),
    Column("computed_prompt_tokens", Integer, nullable=False),
    Column("compute_ns", BigInteger, nullable=False),
    Column("cached_device_tokens", Integer, nullable=False),
    Column("cached_cpu_tokens", Integer, nullable=False),
    Column("cached_nvme_tokens", Integer, nullable=False),
    Column("ended_unix_seconds", Double, nullable=False),  # 0: it ran when this was said
    Column("finish_reason", String(16), nullable=False),
)
