"""Files and batches; usage says what was a line of one."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add tables and a column."""
    op.add_column("usage", sa.Column("service_tier", sa.String(16)))
    op.create_table(
        "files",
        sa.Column("file_id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("filename", sa.String(256), nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("batch_id", sa.String(64)),
        sa.Column("has_errors", sa.Boolean),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
        sa.Column("changed_unix_seconds", sa.Double, nullable=False),
        sa.Column("expires_unix_seconds", sa.Double, nullable=False),
    )
    op.create_index("files_by_tenant", "files", ["tenant", "file_id"])
    op.create_index("files_by_expiry", "files", ["expires_unix_seconds"])
    op.create_table(
        "file_storage",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "file_chunks",
        sa.Column("file_id", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("api_key_id", sa.String(32), nullable=False),
        sa.Column("endpoint", sa.String(64), nullable=False),
        sa.Column("input_file_id", sa.String(64), nullable=False),
        sa.Column("completion_window", sa.String(16), nullable=False),
        sa.Column("request_metadata", sa.JSON),
        sa.Column("output_keep_seconds", sa.Double, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("model", sa.String(512)),
        sa.Column("errors", sa.JSON),
        sa.Column("num_lines", sa.Integer, nullable=False),
        sa.Column("num_completed", sa.Integer, nullable=False),
        sa.Column("num_failed", sa.Integer, nullable=False),
        sa.Column("output_file_id", sa.String(64)),
        sa.Column("error_file_id", sa.String(64)),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
        sa.Column("expires_unix_seconds", sa.Double, nullable=False),
        sa.Column("in_progress_unix_seconds", sa.Double),
        sa.Column("finalizing_unix_seconds", sa.Double),
        sa.Column("completed_unix_seconds", sa.Double),
        sa.Column("failed_unix_seconds", sa.Double),
        sa.Column("expired_unix_seconds", sa.Double),
        sa.Column("cancelling_unix_seconds", sa.Double),
        sa.Column("cancelled_unix_seconds", sa.Double),
        sa.Column("owner", sa.String(128)),
        sa.Column("lease_unix_seconds", sa.Double, nullable=False),
    )
    op.create_index("batches_by_tenant", "batches", ["tenant", "batch_id"])
    op.create_index("batches_by_status", "batches", ["status", "lease_unix_seconds"])
    op.create_index("batches_by_input", "batches", ["input_file_id"])
    op.create_table(
        "batch_answers",
        sa.Column("batch_id", sa.String(64), primary_key=True),
        sa.Column("line", sa.Integer, primary_key=True),
        sa.Column("has_error", sa.Boolean, nullable=False),
        sa.Column("num_bytes", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
