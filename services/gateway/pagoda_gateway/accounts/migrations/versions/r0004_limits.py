"""Organisations and keys have tiers, as tenants have."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add a column to both tables."""
    for table in ("organisations", "api_keys"):
        # As text: both databases understand it, and SQLite alone would have Alembic copy the table.
        op.execute(f"ALTER TABLE {table} ADD COLUMN tier VARCHAR(128) REFERENCES tiers (tier)")
        op.create_index(f"{table}_by_tier", table, ["tier"])
