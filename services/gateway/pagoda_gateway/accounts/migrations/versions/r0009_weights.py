"""A tier says what its tenants weigh where they share a worker."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add a column."""
    op.add_column("tiers", sa.Column("weight", sa.Double, nullable=False, server_default="1"))
