"""Responses and conversations are kept for every replica."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add tables."""
    op.create_table(
        "responses",
        sa.Column("object_id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("gateway_id", sa.String(128)),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_seconds", sa.Double, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_index("responses_by_tenant", "responses", ["tenant", "expires_unix_seconds"])
    op.create_index("responses_by_gateway", "responses", ["gateway_id"])
    op.create_index("responses_by_expiry", "responses", ["expires_unix_seconds"])
    op.create_table(
        "response_storage",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
    )
