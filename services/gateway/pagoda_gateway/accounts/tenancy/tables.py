"""Tables of organisations, tiers, tenants and keys: organisation > tenant > key.

What is deleted keeps its row: usage names it, and its name is never somebody else's.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    select,
)

from pagoda_gateway.accounts.tables import METADATA

DEFAULT = "default"  # organisation of tenants that nobody put into another

ORGANISATIONS = Table(
    "organisations",
    METADATA,
    Column("organisation", String(128), primary_key=True),
    Column("label", String(128), nullable=False),
    Column("created_unix_seconds", Double, nullable=False),
    Column("deleted_unix_seconds", Double),
    Column("tier", String(128), ForeignKey("tiers.tier")),
    Index("organisations_by_tier", "tier"),
)

# A limit that is null is none. Budgets are in millionths of the unit that prices are in.
TIERS = Table(
    "tiers",
    METADATA,
    Column("tier", String(128), primary_key=True),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("concurrent_requests", BigInteger),
    Column("daily_budget_micros", BigInteger),
    Column("monthly_budget_micros", BigInteger),
    Column("on_limit", String(8), nullable=False),  # reject | queue
    Column("weight", Double, nullable=False, server_default="1"),  # of its tenants at a worker
    Column("created_unix_seconds", Double, nullable=False),
)

TENANTS = Table(
    "tenants",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("created_unix_seconds", Double, nullable=False),
    Column(
        "organisation",
        String(128),
        ForeignKey("organisations.organisation"),
        nullable=False,
        server_default=DEFAULT,
    ),
    Column("tier", String(128), ForeignKey("tiers.tier")),
    Column("label", String(128), nullable=False, server_default=""),
    Column("deleted_unix_seconds", Double),
    Index("tenants_by_organisation", "organisation"),
    Index("tenants_by_tier", "tier"),
)

# Whose files, batches and responses go: nobody can ask for them.
DELETED_TENANTS = select(TENANTS.c.tenant).where(TENANTS.c.deleted_unix_seconds.is_not(None))

# Which organisation a tenant left, and when: what it used before counts for that one. Its last one
# is in `TENANTS`.
TENANT_MOVES = Table(
    "tenant_moves",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("moved_unix_seconds", Double, primary_key=True),
    Column("day", Integer, nullable=False),  # of the move, since 1970-01-01 (UTC)
    Column("organisation", String(128), nullable=False),  # that it left
    Index("tenant_moves_by_organisation", "organisation", "moved_unix_seconds"),
    Index("tenant_moves_by_day", "day"),
)

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("api_key_id", String(32), primary_key=True),
    Column("tenant", String(128), ForeignKey("tenants.tenant"), nullable=False),
    Column("key_hash", String(64), nullable=False, unique=True),  # BLAKE2b-256, never the key
    Column("label", String(128), nullable=False),
    Column("created_unix_seconds", Double, nullable=False),
    Column("revoked_unix_seconds", Double),
    Column("prefix", String(16), nullable=False, server_default=""),  # empty: nobody kept it
    Column("models", JSON(none_as_null=True)),  # names that the key may ask for; SQL null: all
    Column("expires_unix_seconds", Double),
    Column("last_used_unix_seconds", Double),
    Column("rotated_to", String(32)),  # the key that takes its place
    Column("first_key_id", String(32)),  # whose place its own is, after rotations; null: its own
    Column("tier", String(128), ForeignKey("tiers.tier")),
    Index("api_keys_by_tenant", "tenant"),
    Index("api_keys_by_tier", "tier"),
    Index("api_keys_by_first", "first_key_id"),
)
