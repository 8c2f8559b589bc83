"""API keys: made, changed, rotated, revoked, found. What is stored of a key is its hash."""

import math
import secrets
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.keys import ApiKey, hash_key
from pagoda_gateway.accounts.limit_scope import LimitScope, ScopeKind
from pagoda_gateway.accounts.tenancy.records import Announce, Clock, Page, Records
from pagoda_gateway.accounts.tenancy.tables import API_KEYS, ORGANISATIONS, TENANTS, TIERS
from pagoda_gateway.accounts.tenancy.tenants import Tenants
from pagoda_gateway.accounts.tenancy.tiers import Tiers
from pagoda_gateway.errors import ConflictError, InvalidRequestError, shorten

QUEUE = "queue"  # of a tier's `on_limit`
SECRET_PREFIX = "sk-pagoda-"
SHOWN_CHARS = len(SECRET_PREFIX) + 4  # enough to tell keys apart, too little to guess one
MIN_SHOWN_SECRET_CHARS = 32  # of shorter ones, which somebody thought up, nothing is shown

_TIERS: dict[ScopeKind, sa.FromClause] = {
    "key": TIERS.alias("key_tier"),
    "tenant": TIERS.alias("tenant_tier"),
    "organisation": TIERS.alias("organisation_tier"),
}
_LIMITS = (
    "requests_per_minute", "tokens_per_minute", "concurrent_requests",
    "daily_budget_micros", "monthly_budget_micros", "on_limit",
)  # fmt: skip
_FIND = (
    sa.select(
        API_KEYS.c.api_key_id,
        API_KEYS.c.first_key_id,
        API_KEYS.c.tenant,
        API_KEYS.c.models,
        API_KEYS.c.expires_unix_seconds,
        TENANTS.c.organisation,
        *(
            tier.c[name].label(f"{kind}_{name}")
            for kind, tier in _TIERS.items()
            for name in ("tier", "weight", *_LIMITS)
        ),
    )
    .join(TENANTS, TENANTS.c.tenant == API_KEYS.c.tenant)
    .join(ORGANISATIONS, ORGANISATIONS.c.organisation == TENANTS.c.organisation)
    .outerjoin(_TIERS["key"], _TIERS["key"].c.tier == API_KEYS.c.tier)
    .outerjoin(_TIERS["tenant"], _TIERS["tenant"].c.tier == TENANTS.c.tier)
    .outerjoin(_TIERS["organisation"], _TIERS["organisation"].c.tier == ORGANISATIONS.c.tier)
    .where(
        API_KEYS.c.revoked_unix_seconds.is_(None),
        TENANTS.c.deleted_unix_seconds.is_(None),
    )
)
_FIND_BY_HASH = _FIND.where(API_KEYS.c.key_hash == sa.bindparam("key_hash"))
_FIND_BY_ID = _FIND.where(API_KEYS.c.api_key_id == sa.bindparam("api_key_id"))


class ApiKeys:
    """Keys in the database."""

    def __init__(
        self,
        database: Database,
        tenants: Tenants,
        tiers: Tiers,
        announce: Announce,
        clock: Clock,
    ) -> None:
        self._database = database
        self._tenants = tenants
        self._tiers = tiers
        self._announce = announce
        self._clock = clock
        self.records = Records(database, API_KEYS, "API key")

    async def find_key(self, key_hash: str) -> ApiKey | None:
        """Return the key with this hash unless it is revoked; it may be expired.

        Raises:
            TimeoutError, SQLAlchemyError: the database does not answer.
        """
        return _key_of(await self._database.look_up(_FIND_BY_HASH.params(key_hash=key_hash)))

    async def find_valid(self, api_key_id: str) -> ApiKey | None:
        """Return the key with this id unless it is revoked or expired.

        Raises:
            TimeoutError, SQLAlchemyError: the database does not answer.
        """
        key = _key_of(await self._database.look_up(_FIND_BY_ID.params(api_key_id=api_key_id)))
        if key is None or (key.expires_unix_seconds or math.inf) <= self._clock():
            return None
        return key

    async def create(
        self,
        tenant: str,
        *,
        label: str = "",
        models: list[str] | None = None,
        expires_unix_seconds: float | None = None,
        tier: str | None = None,
    ) -> tuple[sa.RowMapping, str]:
        """Make a key; return its row and the key itself, which nobody can show again.

        Raises:
            InvalidRequestError: there is no such tenant or tier, or the key would be expired.
        """
        self._check_expiry(expires_unix_seconds)
        secret = _draw()
        values = self._values(tenant, label, secret) | {
            "models": models,
            "expires_unix_seconds": expires_unix_seconds,
            "tier": tier,
        }

        def create(connection: sa.Connection) -> sa.RowMapping:
            self._tenants.records.require(connection, tenant, param="tenant")
            self._tiers.require_given(connection, values)
            return self.records.add(connection, values)

        return await self._database.call(create), secret

    async def ensure(self, tenant: str, label: str, secret: str | None = None) -> tuple[str, str]:
        """Store a key for `tenant` (made if unknown); return (key id, secret). Repeatable.

        A secret that is stored already stays as it is: whose it is, and revoked if it was.
        """
        secret = secret or _draw()
        values = self._values(tenant, label, secret)
        insert = self._database.insert
        new_tenant = {"tenant": tenant, "created_unix_seconds": values["created_unix_seconds"]}

        def ensure(connection: sa.Connection) -> str:
            connection.execute(insert(TENANTS).values(new_tenant).on_conflict_do_nothing())
            connection.execute(
                insert(API_KEYS).values(values).on_conflict_do_nothing(index_elements=["key_hash"])
            )
            found = sa.select(API_KEYS.c.api_key_id).where(
                API_KEYS.c.key_hash == values["key_hash"]
            )
            return str(connection.execute(found).scalar_one())

        return await self._database.call(ensure), secret

    async def page(self, *, tenant: str | None = None, after: str = "", limit: int = 100) -> Page:
        """Return some, revoked ones too, of one tenant or of all."""
        conditions = [] if tenant is None else [API_KEYS.c.tenant == comparable(tenant)]
        return await self.records.page(*conditions, after=after, limit=limit)

    async def update(self, api_key_id: str, values: dict[str, Any]) -> sa.RowMapping:
        """Change those of `label`, `models`, `expires_unix_seconds` and `tier` that are given.

        Raises:
            NotFoundError: there is no such key.
            ConflictError: it is revoked.
            InvalidRequestError: it would be expired, or there is no such tier.
        """
        self._check_expiry(values.get("expires_unix_seconds"))

        def change(connection: sa.Connection) -> sa.RowMapping:
            self._read_valid(connection, api_key_id)
            self._tiers.require_given(connection, values)
            return self.records.change(connection, api_key_id, values)

        row = await self._database.call(change)
        await self._announce(AccountChange(api_key_id=api_key_id))
        return row

    async def rotate(self, api_key_id: str, *, overlap_seconds: float) -> tuple[sa.RowMapping, str]:
        """Make a key that takes a key's place; the old one ends after the overlap.

        The new one may do the same, and lives as long as the old one was to live from its start.

        Raises:
            NotFoundError: there is no such key.
            ConflictError: it is revoked, expired or rotated already.
        """
        secret, now = _draw(), self._clock()

        def rotate(connection: sa.Connection) -> sa.RowMapping:
            old = self._read_valid(connection, api_key_id)
            expires = old["expires_unix_seconds"]
            if expires is not None and expires <= now:
                raise ConflictError(f"the API key {shorten(api_key_id)} is expired: create another")
            if old["rotated_to"] is not None:
                raise ConflictError(
                    f"the API key {shorten(api_key_id)} is rotated already: rotate "
                    f"{old['rotated_to']}, which took its place"
                )
            lifetime = None if expires is None else expires - old["created_unix_seconds"]
            values = self._values(old["tenant"], old["label"], secret) | {
                "models": old["models"],
                "tier": old["tier"],
                "first_key_id": old["first_key_id"] or old["api_key_id"],
                "expires_unix_seconds": None if lifetime is None else now + lifetime,
            }
            new = self.records.add(connection, values)
            end = now + overlap_seconds
            self.records.change(
                connection,
                api_key_id,
                {
                    "rotated_to": new["api_key_id"],
                    "expires_unix_seconds": end if expires is None else min(end, expires),
                },
            )
            return new

        row = await self._database.call(rotate)
        await self._announce(AccountChange(api_key_id=api_key_id))
        return row, secret

    async def revoke(self, api_key_id: str) -> sa.RowMapping:
        """Make a key useless, everywhere and for ever. Repeatable.

        Raises:
            NotFoundError: there is no such key.
        """

        def revoke(connection: sa.Connection) -> sa.RowMapping:
            row = self.records.read(connection, api_key_id, for_change=True)
            if row["revoked_unix_seconds"] is not None:
                return row
            values = {"revoked_unix_seconds": self._clock()}
            return self.records.change(connection, api_key_id, values)

        row = await self._database.call(revoke)
        await self._announce(AccountChange(api_key_id=api_key_id))
        return row

    async def note_used(self, used: dict[str, float]) -> None:
        """Store when keys (by id) were last used, unless another gateway knows of a later use."""
        moment: sa.BindParameter[float] = sa.bindparam("moment")
        statement = (
            sa.update(API_KEYS)
            .where(
                API_KEYS.c.api_key_id == sa.bindparam("id"),
                sa.func.coalesce(API_KEYS.c.last_used_unix_seconds, 0.0) < moment,
            )
            .values(last_used_unix_seconds=moment)
        )
        rows = [{"id": key, "moment": used[key]} for key in sorted(used)]  # locked in one order
        await self._database.call(lambda connection: connection.execute(statement, rows))

    def _read_valid(self, connection: sa.Connection, api_key_id: str) -> sa.RowMapping:
        row = self.records.read(connection, api_key_id, for_change=True)
        if row["revoked_unix_seconds"] is not None:
            raise ConflictError(f"the API key {shorten(api_key_id)} is revoked: create another")
        return row

    def _check_expiry(self, expires_unix_seconds: float | None) -> None:
        now = self._clock()
        if expires_unix_seconds is not None and expires_unix_seconds <= now:
            raise InvalidRequestError(
                f"'expires_at': {expires_unix_seconds:.0f} is past, now is {now:.0f} "
                "(Unix seconds); DELETE revokes a key",
                param="expires_at",
            )

    def _values(self, tenant: str, label: str, secret: str) -> dict[str, Any]:
        return {
            "api_key_id": f"key-{secrets.token_hex(8)}",
            "tenant": tenant,
            "key_hash": hash_key(secret),
            "label": label,
            "created_unix_seconds": self._clock(),
            "prefix": secret[:SHOWN_CHARS] if len(secret) >= MIN_SHOWN_SECRET_CHARS else "",
        }


def _draw() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def _key_of(row: sa.RowMapping | None) -> ApiKey | None:
    if row is None:
        return None
    return ApiKey(
        row["api_key_id"],
        row["tenant"],
        models=None if row["models"] is None else tuple(row["models"]),
        expires_unix_seconds=row["expires_unix_seconds"],
        organisation=row["organisation"],
        tiers=tuple(tier for kind in _TIERS if (tier := row[f"{kind}_tier"]) is not None),
        scopes=_scopes_of(row),
        weight=_weight_of(row),
    )


def _weight_of(row: sa.RowMapping) -> float:
    """Return what the tier of the tenant says, else that of its organisation.

    A key's tier says nothing: workers know tenants alone.
    """
    weights = (row[f"{kind}_weight"] for kind in ("tenant", "organisation"))
    return next((float(weight) for weight in weights if weight is not None), 1.0)


def _scopes_of(row: sa.RowMapping) -> tuple[LimitScope, ...]:
    """Return what is limited; a key that took another's place goes on with what that one used."""
    names: dict[ScopeKind, str] = {
        "key": row["first_key_id"] or row["api_key_id"],
        "tenant": row["tenant"],
        "organisation": row["organisation"],
    }
    found = []
    for kind, name in names.items():
        limits = {limit: row[f"{kind}_{limit}"] for limit in _LIMITS}
        is_queueing = limits.pop("on_limit") == QUEUE
        if any(value is not None for value in limits.values()):
            found.append(LimitScope(kind, name, is_queueing=is_queueing, **limits))
    return tuple(found)
