"""Tables of files and batches. SQLite embedded, PostgreSQL in production: only what both have."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
)

from pagoda_gateway.accounts.tables import METADATA

# A file is "writing" until its last byte is here, then "ready", then "deleting" until its rows are
# gone. What is in it lies in FILE_CHUNKS, or, if it has a batch, in that batch's ANSWERS.
FILES = Table(
    "files",
    METADATA,
    Column("file_id", String(64), primary_key=True),  # sorted by time, as all ids here
    Column("tenant", String(128), nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("filename", String(256), nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("batch_id", String(64)),
    Column("has_errors", Boolean),  # with a batch: its failed lines, or the others
    Column("created_unix_seconds", Double, nullable=False),
    Column("changed_unix_seconds", Double, nullable=False),
    Column("expires_unix_seconds", Double, nullable=False),
    Index("files_by_tenant", "tenant", "file_id"),
    Index("files_by_expiry", "expires_unix_seconds"),
)

# Bytes of all of a tenant's files; what is written or deleted is counted in the same transaction.
STORAGE = Table(
    "file_storage",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("num_bytes", BigInteger, nullable=False),
)

FILE_CHUNKS = Table(
    "file_chunks",
    METADATA,
    Column("file_id", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

BATCHES = Table(
    "batches",
    METADATA,
    Column("batch_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("api_key_id", String(32), nullable=False),
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", String(64), nullable=False),
    Column("completion_window", String(16), nullable=False),
    Column("request_metadata", JSON),
    Column("output_keep_seconds", Double, nullable=False),
    Column("status", String(16), nullable=False),
    Column("model", String(512)),
    Column("errors", JSON),
    Column("num_lines", Integer, nullable=False),
    Column("num_completed", Integer, nullable=False),
    Column("num_failed", Integer, nullable=False),
    # Of those that failed: they were not run. A gateway of before counts none of them.
    Column("num_cancelled", Integer, nullable=False, server_default="0"),
    Column("num_expired", Integer, nullable=False, server_default="0"),
    # Tokens of the lines that have completed; a gateway of before knows no such columns.
    Column("num_input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("num_cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column("num_output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("num_reasoning_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_file_id", String(64)),
    Column("error_file_id", String(64)),
    Column("created_unix_seconds", Double, nullable=False),
    Column("expires_unix_seconds", Double, nullable=False),
    Column("in_progress_unix_seconds", Double),
    Column("finalizing_unix_seconds", Double),
    Column("completed_unix_seconds", Double),
    Column("failed_unix_seconds", Double),
    Column("expired_unix_seconds", Double),
    Column("cancelling_unix_seconds", Double),
    Column("cancelled_unix_seconds", Double),
    # Whose work it is now. A replica that does not renew its lease loses the batch to another.
    Column("owner", String(128)),
    Column("lease_unix_seconds", Double, nullable=False),
    Index("batches_by_tenant", "tenant", "batch_id"),
    Index("batches_by_status", "status", "lease_unix_seconds"),
    Index("batches_by_input", "input_file_id"),
)

# One row for each line that has its answer. Its key is why a line cannot be delivered twice.
ANSWERS = Table(
    "batch_answers",
    METADATA,
    Column("batch_id", String(64), primary_key=True),
    Column("line", Integer, primary_key=True),  # of the input file, from 1
    Column("has_error", Boolean, nullable=False),
    Column("num_bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),  # JSON and a line feed
)
