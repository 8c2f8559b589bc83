"""Usage says how many proposed tokens were verified, and how many of them were right."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add columns."""
    op.add_column("usage", sa.Column("proposed_tokens", sa.Integer))
    op.add_column("usage", sa.Column("accepted_tokens", sa.Integer))
