"""Batches count the tokens of their lines."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add columns. What lines of before took is not counted."""
    for name in ("input", "cached", "output", "reasoning"):
        column = sa.Column(f"num_{name}_tokens", sa.BigInteger, nullable=False, server_default="0")
        op.add_column("batches", column)
