"""Tables of prices, of tenants' chains of receipts, and of what was used by day."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table

from pagoda_gateway.accounts.tables import METADATA

# What a model's tokens cost from a moment on, until its next price begins. Micros are for a million
# tokens. Rows stay for ever as they are, but for the one that has not begun: it may be withdrawn.
PRICES = Table(
    "prices",
    METADATA,
    Column("price_id", String(32), primary_key=True),
    Column("model", String(512), nullable=False),
    Column("valid_from_unix_seconds", Double, nullable=False),
    Column("input_micros", BigInteger, nullable=False),
    Column("cached_device_micros", BigInteger, nullable=False),
    Column("cached_cpu_micros", BigInteger, nullable=False),
    Column("cached_nvme_micros", BigInteger, nullable=False),
    Column("output_micros", BigInteger, nullable=False),
    Column("batch_discount_percent", Integer, nullable=False),
    Column("created_unix_seconds", Double, nullable=False),
    Column("withdrawn_unix_seconds", Double),
    Index("prices_by_model", "model", "valid_from_unix_seconds"),
)

# The end of each tenant's chain of receipts, and the last of those that retention has cut off.
# Its row is the tenant's lock: who holds it gives out numbers.
RECEIPT_CHAINS = Table(
    "receipt_chains",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("last_number", BigInteger, nullable=False),
    Column("last_hash", String(64), nullable=False),
    Column("cut_number", BigInteger, nullable=False),
    Column("cut_hash", String(64), nullable=False),
)

# Sums over the receipts of a UTC day, on which their requests were opened. They outlive usage.
USAGE_DAYS = Table(
    "usage_days",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("day", Integer, primary_key=True),  # since 1970-01-01
    Column("api_key_id", String(32), primary_key=True),
    Column("model", String(512), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Index("usage_days_by_key", "api_key_id", "day"),
)
