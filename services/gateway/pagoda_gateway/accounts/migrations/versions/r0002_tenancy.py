"""Organisations and tiers; what is known of a key; receipts are found by OpenAI's id."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

# An older gateway, which still runs, makes tenants without an organisation.
DEFAULT = "default"


def upgrade() -> None:
    """Add tables and columns; tenants that are there belong to the organisation `default`."""
    organisations = op.create_table(
        "organisations",
        sa.Column("organisation", sa.String(128), primary_key=True),
        sa.Column("label", sa.String(128), nullable=False),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
        sa.Column("deleted_unix_seconds", sa.Double),
    )
    now = time.time()
    op.bulk_insert(
        organisations, [{"organisation": DEFAULT, "label": "", "created_unix_seconds": now}]
    )
    op.create_table(
        "tiers",
        sa.Column("tier", sa.String(128), primary_key=True),
        sa.Column("requests_per_minute", sa.BigInteger),
        sa.Column("tokens_per_minute", sa.BigInteger),
        sa.Column("concurrent_requests", sa.BigInteger),
        sa.Column("daily_budget_micros", sa.BigInteger),
        sa.Column("monthly_budget_micros", sa.BigInteger),
        sa.Column("on_limit", sa.String(8), nullable=False),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
    )
    # As text: both databases understand it, and SQLite alone would have Alembic copy the tables.
    op.execute(
        "ALTER TABLE tenants ADD COLUMN organisation VARCHAR(128) NOT NULL "
        f"DEFAULT '{DEFAULT}' REFERENCES organisations (organisation)"
    )
    op.execute("ALTER TABLE tenants ADD COLUMN tier VARCHAR(128) REFERENCES tiers (tier)")
    op.add_column("tenants", sa.Column("label", sa.String(128), nullable=False, server_default=""))
    op.add_column("tenants", sa.Column("deleted_unix_seconds", sa.Double))
    op.add_column("api_keys", sa.Column("prefix", sa.String(16), nullable=False, server_default=""))
    op.add_column("api_keys", sa.Column("models", sa.JSON))
    op.add_column("api_keys", sa.Column("expires_unix_seconds", sa.Double))
    op.add_column("api_keys", sa.Column("last_used_unix_seconds", sa.Double))
    op.add_column("api_keys", sa.Column("rotated_to", sa.String(32)))
    op.create_index("tenants_by_organisation", "tenants", ["organisation"])
    op.create_index("tenants_by_tier", "tenants", ["tier"])
    op.create_index("api_keys_by_tenant", "api_keys", ["tenant"])
    op.create_index("usage_by_object", "usage", ["object_id"])
