"""Answers of the administration, made of rows. Times are whole Unix seconds."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import RowMapping


class Organisation(BaseModel):
    """Who has tenants."""

    id: str
    object: Literal["organisation"] = "organisation"
    tier: str | None
    label: str
    created_at: int


class Reconciliation(BaseModel):
    """Requests of gateways that are gone, and those that are still open."""

    object: Literal["reconciliation"] = "reconciliation"
    reconciled: int
    lost: int
    open: int
    unbegun: int = Field(
        description="Ended, and the ledger lacks how they began, as one that was restored from a "
        "copy does: they are billed to nobody."
    )


class Tenant(BaseModel):
    """Whom requests are admitted, cached and billed for."""

    id: str
    object: Literal["tenant"] = "tenant"
    organisation: str
    tier: str | None
    label: str
    created_at: int


class Tier(BaseModel):
    """A named set of limits, and what tenants weigh that have it."""

    id: str
    object: Literal["tier"] = "tier"
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    daily_budget_micros: int | None
    monthly_budget_micros: int | None
    on_limit: Literal["reject", "queue"]
    weight: float
    created_at: int


class Key(BaseModel):
    """An API key, without what it is; `prefix` is empty where nothing of it was kept."""

    id: str
    object: Literal["api_key"] = "api_key"
    tenant: str
    tier: str | None
    label: str
    prefix: str
    models: list[str] | None
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None
    rotated_to: str | None
    status: Literal["valid", "expired", "revoked"]


class CreatedKey(Key):
    """A key that was just made: `key` is shown this once."""

    key: str


class OrganisationList(BaseModel):
    """Some organisations, by id."""

    object: Literal["list"] = "list"
    data: list[Organisation]
    has_more: bool


class TenantList(BaseModel):
    """Some tenants, by id."""

    object: Literal["list"] = "list"
    data: list[Tenant]
    has_more: bool


class TierList(BaseModel):
    """Some tiers, by id."""

    object: Literal["list"] = "list"
    data: list[Tier]
    has_more: bool


class KeyList(BaseModel):
    """Some keys, by id."""

    object: Literal["list"] = "list"
    data: list[Key]
    has_more: bool


class PrefixExample(BaseModel):
    """The latest request of a kind, and what differed: both texts are cut short."""

    request_id: str
    first_token: int | None
    text: str
    earlier_text: str


class PrefixMiss(BaseModel):
    """Why requests of one tenant missed a prefix, and how often."""

    model_config = ConfigDict(populate_by_name=True)

    object: Literal["prefix_miss"] = "prefix_miss"
    tenant: str | None
    model: str | None
    kind: str = Field(alias="class")
    place: str | None
    role: str | None
    requests: int
    lost_tokens: int
    lost_tokens_per_hour: float
    lost_micros: int | None
    example: PrefixExample
    advice: str


class PrefixMissList(BaseModel):
    """Reasons of the last hours, the costliest first."""

    object: Literal["list"] = "list"
    hours: float
    data: list[PrefixMiss]


class Deleted(BaseModel):
    """What was deleted."""

    id: str
    object: Literal["organisation", "tenant", "tier"]
    deleted: Literal[True] = True


def organisation_answer(row: RowMapping) -> dict[str, Any]:
    """Return a row of `ORGANISATIONS` as an Organisation."""
    return Organisation(
        id=row["organisation"],
        tier=row["tier"],
        label=row["label"],
        created_at=_seconds(row, "created"),
    ).model_dump()


def tenant_answer(row: RowMapping) -> dict[str, Any]:
    """Return a row of `TENANTS` as a Tenant."""
    return Tenant(
        id=row["tenant"],
        organisation=row["organisation"],
        tier=row["tier"],
        label=row["label"],
        created_at=_seconds(row, "created"),
    ).model_dump()


def tier_answer(row: RowMapping) -> dict[str, Any]:
    """Return a row of `TIERS` as a Tier."""
    limits = {name: row[name] for name in Tier.model_fields if name in row}
    return Tier(id=row["tier"], created_at=_seconds(row, "created"), **limits).model_dump()


def key_answer(row: RowMapping, now: float) -> dict[str, Any]:
    """Return a row of `API_KEYS` as a Key."""
    expires = row["expires_unix_seconds"]
    status: Literal["valid", "expired", "revoked"] = "valid"
    if row["revoked_unix_seconds"] is not None:
        status = "revoked"
    elif expires is not None and expires <= now:
        status = "expired"
    return Key(
        id=row["api_key_id"],
        tenant=row["tenant"],
        tier=row["tier"],
        label=row["label"],
        prefix=row["prefix"],
        models=row["models"],
        created_at=_seconds(row, "created"),
        expires_at=_optional_seconds(row, "expires"),
        last_used_at=_optional_seconds(row, "last_used"),
        revoked_at=_optional_seconds(row, "revoked"),
        rotated_to=row["rotated_to"],
        status=status,
    ).model_dump()


def list_answer(
    rows: Sequence[RowMapping], has_more: bool, answer: Callable[[RowMapping], dict[str, Any]]
) -> dict[str, Any]:
    """Return rows as a list of what `answer` makes of each."""
    return {"object": "list", "data": [answer(row) for row in rows], "has_more": has_more}


def _seconds(row: RowMapping, event: str) -> int:
    return int(row[f"{event}_unix_seconds"])


def _optional_seconds(row: RowMapping, event: str) -> int | None:
    return None if row[f"{event}_unix_seconds"] is None else _seconds(row, event)
