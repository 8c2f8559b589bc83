"""Usage says what a policy found, and whether the answer was kept of another request."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add columns."""
    op.add_column("usage", sa.Column("is_cached_answer", sa.Boolean))
    op.add_column("usage", sa.Column("safety_findings", sa.JSON))
