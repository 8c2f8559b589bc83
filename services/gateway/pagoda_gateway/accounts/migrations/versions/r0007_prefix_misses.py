"""Why a prompt's expected prefix was not cached."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add columns, and an index of the rows that have them."""
    op.add_column("usage", sa.Column("prefix_class", sa.String(32)))
    op.add_column("usage", sa.Column("prefix_place", sa.String(64)))
    op.add_column("usage", sa.Column("prefix_lost_tokens", sa.Integer))
    op.add_column("usage", sa.Column("prefix_lost_micros", sa.BigInteger))
    op.add_column("usage", sa.Column("prefix", sa.JSON))
    op.create_index(
        "usage_by_prefix_miss",
        "usage",
        ["closed_unix_seconds"],
        sqlite_where=sa.text("prefix_lost_tokens > 0"),
        postgresql_where=sa.text("prefix_lost_tokens > 0"),
    )
