"""Bodies of the administration. Unlike clients' bodies, a field that nobody knows is an error."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # as workers take it
_NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"
MAX_JSON_INTEGER = 2**53 - 1  # JavaScript's numbers are exact up to here
DAY_SECONDS = 86_400
LAST_UNIX_SECONDS = 253_402_300_799  # the end of the year 9999

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]*$")]
Label = Annotated[str, Field(max_length=128, pattern=_NO_CONTROL)]
ModelName = Annotated[str, Field(min_length=1, max_length=512, pattern=_NO_CONTROL)]
AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Models = Annotated[list[ModelName], Field(min_length=1, max_length=64)]
UnixSeconds = Annotated[int, Field(ge=1, le=LAST_UNIX_SECONDS)]
Rate = Annotated[int, Field(ge=1, le=MAX_JSON_INTEGER)]
Weight = Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)]
Micros = Annotated[int, Field(ge=0, le=MAX_JSON_INTEGER)]


class AdminBody(BaseModel):
    """A whole body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    def given(self) -> dict[str, Any]:
        """Return the fields that were sent; null is a value."""
        return self.model_dump(exclude_unset=True)


class Reconcile(AdminBody):
    """POST /admin/ledger/reconcile."""

    gone_seconds: Annotated[float, Field(ge=5, le=DAY_SECONDS)] = 30.0


class NewOrganisation(AdminBody):
    """POST /admin/organisations."""

    id: Name
    tier: Name | None = None
    label: Label = ""


class OrganisationChange(AdminBody):
    """PATCH /admin/organisations/{id}: what is not sent stays; no tier is null."""

    tier: Name | None = None
    label: Label = ""


class NewTenant(AdminBody):
    """POST /admin/tenants."""

    id: Name
    organisation: Name = "default"
    tier: Name | None = None
    label: Label = ""


class TenantChange(AdminBody):
    """PATCH /admin/tenants/{id}: what is not sent stays; no tier is null."""

    organisation: Name = "default"
    tier: Name | None = None
    label: Label = ""


class NewKey(AdminBody):
    """POST /admin/keys."""

    tenant: Name
    label: Label = ""
    models: Models | None = Field(None, description="Names it may ask for; null: all.")
    expires_at: UnixSeconds | None = Field(None, description="Unix seconds; null: never.")
    tier: Name | None = None


class KeyChange(AdminBody):
    """PATCH /admin/keys/{id}: what is not sent stays; no tier is null."""

    label: Label = ""
    models: Models | None = None
    expires_at: UnixSeconds | None = None
    tier: Name | None = None


class KeyRotation(AdminBody):
    """POST /admin/keys/{id}/rotate."""

    overlap_seconds: int = Field(
        DAY_SECONDS, ge=0, le=90 * DAY_SECONDS, description="So long the old key goes on."
    )


class Limits(AdminBody):
    """What a tier limits an organisation, a tenant or a key to; a limit that is null is none.

    `weight` is no limit, and says nothing of keys: a tenant's own tier says it, else the tier of
    its organisation, of each of its tenants.
    """

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    concurrent_requests: Rate | None = None
    daily_budget_micros: Micros | None = Field(
        None, description="Millionths of the unit that prices are in."
    )
    monthly_budget_micros: Micros | None = None
    on_limit: Literal["reject", "queue"] = "reject"
    weight: Weight = Field(
        1.0, description="Of a tenant's share of a worker: one of weight 2 gets twice what 1 gets."
    )


class NewTier(Limits):
    """POST /admin/tiers."""

    id: Name


class TierChange(Limits):
    """PATCH /admin/tiers/{id}: what is not sent stays."""


class AdapterToLoad(AdminBody):
    """POST /v1/load_lora_adapter."""

    lora_name: AdapterName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    base_model: ModelName | None = None  # the gateway's own model


class AdapterToUnload(AdminBody):
    """POST /v1/unload_lora_adapter."""

    lora_name: AdapterName
    base_model: ModelName | None = None
