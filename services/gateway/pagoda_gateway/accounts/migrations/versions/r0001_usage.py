"""Tenants, keys, usage and the names of requests.

Gateways before the first revision made these tables without one: what is there is taken over.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables that are missing."""
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "api_keys",
        sa.Column("api_key_id", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(128), sa.ForeignKey("tenants.tenant"), nullable=False),
        sa.Column("key_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("label", sa.String(128), nullable=False),
        sa.Column("created_unix_seconds", sa.Double, nullable=False),
        sa.Column("revoked_unix_seconds", sa.Double),
        if_not_exists=True,
    )
    op.create_table(
        "usage",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("object_id", sa.String(128)),
        sa.Column("tenant", sa.String(128)),
        sa.Column("api_key_id", sa.String(32)),
        sa.Column("model", sa.String(512)),
        sa.Column("endpoint", sa.String(64)),
        sa.Column("max_output_tokens", sa.Integer),
        sa.Column("opened_prompt_tokens", sa.Integer),
        sa.Column("opened_unix_seconds", sa.Double),
        sa.Column("gateway_id", sa.String(128)),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("cached_device_tokens", sa.Integer),
        sa.Column("cached_cpu_tokens", sa.Integer),
        sa.Column("cached_nvme_tokens", sa.Integer),
        sa.Column("output_tokens", sa.Integer),
        sa.Column("finish_reasons", sa.JSON),
        sa.Column("stages_ms", sa.JSON),
        sa.Column("ttft_ms", sa.Float),
        sa.Column("e2e_ms", sa.Float),
        sa.Column("attempts", sa.Integer),
        sa.Column("closed_unix_seconds", sa.Double),
        sa.Column("outcome", sa.String(32)),
        sa.Column("worker_ids", sa.JSON),
        if_not_exists=True,
    )
    op.create_table(
        "request_names",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("client_request_id", sa.String(64), nullable=False),
        if_not_exists=True,
    )
    op.create_index(
        "usage_by_tenant", "usage", ["tenant", "opened_unix_seconds"], if_not_exists=True
    )
    op.create_index(
        "request_names_by_client",
        "request_names",
        ["tenant", "client_request_id"],
        if_not_exists=True,
    )
