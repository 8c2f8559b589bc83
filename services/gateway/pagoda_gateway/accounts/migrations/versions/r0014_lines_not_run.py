"""Batches count the lines that were not run."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add columns. Those of batches that ended before are not counted."""
    for name in ("cancelled", "expired"):
        column = sa.Column(f"num_{name}", sa.Integer, nullable=False, server_default="0")
        op.add_column("batches", column)
