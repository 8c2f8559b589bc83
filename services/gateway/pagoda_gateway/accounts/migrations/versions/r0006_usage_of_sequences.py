"""What workers published and computed; open requests are found by their gateway."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add a table, a column and an index."""
    op.add_column("usage", sa.Column("num_choices", sa.Integer))
    is_open = sa.text("closed_unix_seconds IS NULL")
    op.create_index(
        "usage_open", "usage", ["gateway_id"], sqlite_where=is_open, postgresql_where=is_open
    )
    op.create_table(
        "sequence_usage",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("record_id", sa.String(64), primary_key=True),
        sa.Column("sequence_index", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("worker_id", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("first_index", sa.Integer, nullable=False),
        sa.Column("published_tokens", sa.Integer, nullable=False),
        sa.Column("computed_prompt_tokens", sa.Integer, nullable=False),
        sa.Column("compute_ns", sa.BigInteger, nullable=False),
        sa.Column("cached_device_tokens", sa.Integer, nullable=False),
        sa.Column("cached_cpu_tokens", sa.Integer, nullable=False),
        sa.Column("cached_nvme_tokens", sa.Integer, nullable=False),
        sa.Column("ended_unix_seconds", sa.Double, nullable=False),
        sa.Column("finish_reason", sa.String(16), nullable=False),
    )
