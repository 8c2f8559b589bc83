"""Tables of organisations, tiers, tenants and keys: organisation > tenant > key.

What is deleted keeps its row: usage names it, and its name is never somebody else's.
"""

from sqlalchemy import JSON, BigInteger, Column, Double, ForeignKey, Index, String, Table

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
    Column("tier", String(128), ForeignKey("tiers.tier")),
    Index("api_keys_by_tenant", "tenant"),
    Index("api_keys_by_tier", "tier"),
)
