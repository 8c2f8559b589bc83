"""Moves of tenants between organisations; keys know whose successors they are."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add a table and a column. Moves of before are not known: they stay forgotten."""
    op.create_table(
        "tenant_moves",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("moved_unix_seconds", sa.Double, primary_key=True),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("organisation", sa.String(128), nullable=False),
    )
    op.create_index(
        "tenant_moves_by_organisation", "tenant_moves", ["organisation", "moved_unix_seconds"]
    )
    op.create_index("tenant_moves_by_day", "tenant_moves", ["day"])
    op.add_column("api_keys", sa.Column("first_key_id", sa.String(32)))
    op.create_index("api_keys_by_first", "api_keys", ["first_key_id"])
    _find_first_keys()


def _find_first_keys() -> None:
    """Say of successors that there are whose they are, however often their keys were rotated."""
    keys = sa.table(
        "api_keys", sa.column("api_key_id"), sa.column("rotated_to"), sa.column("first_key_id")
    )
    connection = op.get_bind()
    rows = connection.execute(
        sa.select(keys.c.api_key_id, keys.c.rotated_to).where(keys.c.rotated_to.is_not(None))
    )
    predecessors = {successor: key for key, successor in rows}
    for key in predecessors:
        first = key
        while first in predecessors:
            first = predecessors[first]
        connection.execute(
            sa.update(keys).where(keys.c.api_key_id == key).values(first_key_id=first)
        )
