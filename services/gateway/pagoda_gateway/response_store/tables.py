"""Tables of kept responses and conversations: only what SQLite and PostgreSQL both have."""

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, String, Table

from pagoda_gateway.accounts.tables import METADATA

RESPONSES = Table(
    "responses",
    METADATA,
    Column("object_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("gateway_id", String(128)),  # whose work it is; none: it has ended
    Column("num_bytes", BigInteger, nullable=False),
    Column("expires_unix_seconds", Double, nullable=False),
    Column("value", LargeBinary, nullable=False),  # JSON; the last, so that others are read alone
    Index("responses_by_tenant", "tenant", "expires_unix_seconds"),
    Index("responses_by_gateway", "gateway_id"),
    Index("responses_by_expiry", "expires_unix_seconds"),
)

# Bytes of all that is kept of a tenant; changed in the same transaction as that.
RESPONSE_STORAGE = Table(
    "response_storage",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("num_bytes", BigInteger, nullable=False),
)
