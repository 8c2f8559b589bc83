"""Prices; rows of usage are priced and chained; sums by day; receipts are found faster."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add tables, columns and indexes. Usage of before stays without a price and a number."""
    op.create_table(
        "prices",
        sa.Column("price_id", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(512), nullable=False),
        sa.Column("valid_from_unix_seconds", sa.Double, nullable=False),
        sa.Column("input_micros", sa.BigInteger, nullable=False),
        sa.Column("cached_device_micros", sa.BigInteger, nullable=False),
        sa.Column("cached_cpu_micros", sa.BigInteger, nullable=False),
        sa.Column("cached_nvme_micros", sa.BigInteger, nullable=False),
        sa.Column("output_micros", sa.BigInteger, nullable=False),
        sa.Column("batch_discount_percent", sa.Integer, nullable=False),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
        sa.Column("withdrawn_unix_seconds", sa.Double),
    )
    op.create_index("prices_by_model", "prices", ["model", "valid_from_unix_seconds"])
    op.create_table(
        "receipt_chains",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("last_number", sa.BigInteger, nullable=False),
        sa.Column("last_hash", sa.String(64), nullable=False),
        sa.Column("cut_number", sa.BigInteger, nullable=False),
        sa.Column("cut_hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "usage_days",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("api_key_id", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(512), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_micros", sa.BigInteger, nullable=False),
    )
    op.create_index("usage_days_by_key", "usage_days", ["api_key_id", "day"])
    op.add_column("usage", sa.Column("price_id", sa.String(32)))
    op.add_column("usage", sa.Column("cost_micros", sa.BigInteger))
    op.add_column("usage", sa.Column("price_lines", sa.JSON))
    op.add_column("usage", sa.Column("receipt_number", sa.BigInteger))
    op.add_column("usage", sa.Column("previous_hash", sa.String(64)))
    op.add_column("usage", sa.Column("receipt_hash", sa.String(64)))
    op.create_index("usage_by_number", "usage", ["tenant", "receipt_number"], unique=True)
    is_not_sealed = sa.text("receipt_number IS NULL")
    op.create_index(
        "usage_not_sealed",
        "usage",
        ["opened_unix_seconds"],
        sqlite_where=is_not_sealed,
        postgresql_where=is_not_sealed,
    )
    op.create_index(
        "request_names_by_client_and_id",
        "request_names",
        ["tenant", "client_request_id", "request_id"],
    )
    op.drop_index("request_names_by_client", "request_names")
