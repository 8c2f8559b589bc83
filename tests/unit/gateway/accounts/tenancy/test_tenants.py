"""Organisations have tenants, tenants have tiers; what is deleted stays in the books."""

import pytest

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.keys import hash_key
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.errors import ConflictError, InvalidRequestError, NotFoundError

GOLD = {"requests_per_minute": 60, "daily_budget_micros": 2**50, "on_limit": "queue"}


async def test_a_tenant_belongs_to_an_organisation_and_has_a_tier(tenancy: Tenancy) -> None:
    await tenancy.organisations.create("acme", label="Acme Ltd")
    await tenancy.tiers.create("gold", GOLD)
    row = await tenancy.tenants.create("t", organisation="acme", tier="gold", label="team T")
    assert (row["organisation"], row["tier"], row["label"]) == ("acme", "gold", "team T")
    page = await tenancy.tenants.page(organisation="acme")
    assert [found["tenant"] for found in page.rows] == ["t"]
    assert (await tenancy.tenants.page(organisation="default")).rows == []


async def test_a_tier_keeps_its_limits(tenancy: Tenancy) -> None:
    await tenancy.tiers.create("gold", GOLD)
    changed = await tenancy.tiers.update(
        "gold", {"requests_per_minute": None, "on_limit": "reject"}
    )
    assert changed["requests_per_minute"] is None
    assert changed["tokens_per_minute"] is None
    assert (changed["daily_budget_micros"], changed["on_limit"]) == (2**50, "reject")


@pytest.mark.parametrize("field", ["organisation", "tier"])
async def test_what_a_tenant_refers_to_must_exist(tenancy: Tenancy, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{field}': there is no {field} 'no'") as caught:
        await tenancy.tenants.create("t", **{"organisation": "default", field: "no"})
    assert caught.value.param == field
    await tenancy.tenants.create("t", organisation="default")
    with pytest.raises(InvalidRequestError):
        await tenancy.tenants.update("t", {field: "no"})


@pytest.mark.parametrize("name", ["default", "gone"])
async def test_an_id_is_never_anybody_elses(tenancy: Tenancy, name: str) -> None:
    await tenancy.organisations.create("gone")
    await tenancy.organisations.delete("gone")
    with pytest.raises(ConflictError, match=name):
        await tenancy.organisations.create(name)


async def test_deleting_a_tenant_ends_its_keys_and_keeps_its_name(
    tenancy: Tenancy, announced: list[AccountChange]
) -> None:
    await tenancy.tiers.create("gold", GOLD)
    await tenancy.tenants.create("t", organisation="default", tier="gold")
    key, secret = await tenancy.api_keys.create("t")
    announced.clear()
    await tenancy.tenants.delete("t")
    assert announced == [AccountChange(tenant="t")]
    assert await tenancy.api_keys.find_key(hash_key(secret)) is None
    assert (await tenancy.api_keys.records.get(key["api_key_id"]))["revoked_unix_seconds"]
    assert (await tenancy.tenants.page()).rows == []
    with pytest.raises(NotFoundError):
        await tenancy.tenants.records.get("t")
    with pytest.raises(InvalidRequestError):
        await tenancy.api_keys.create("t")
    with pytest.raises(ConflictError):
        await tenancy.tenants.create("t", organisation="default")
    _, secret = await tenancy.api_keys.ensure("t", "bootstrap")  # at the next start
    assert await tenancy.api_keys.find_key(hash_key(secret)) is None
    await tenancy.tiers.delete("gold")  # nobody has it any more


async def test_what_is_in_use_is_not_deleted(tenancy: Tenancy) -> None:
    await tenancy.organisations.create("acme")
    await tenancy.tiers.create("gold", GOLD)
    await tenancy.tenants.create("t", organisation="acme", tier="gold")
    with pytest.raises(ConflictError, match="'t'"):
        await tenancy.organisations.delete("acme")
    with pytest.raises(ConflictError, match="'t'"):
        await tenancy.tiers.delete("gold")
    await tenancy.tenants.update("t", {"organisation": "default", "tier": None})
    await tenancy.organisations.delete("acme")
    await tenancy.tiers.delete("gold")
    for owner in (tenancy.organisations, tenancy.tiers):
        with pytest.raises(NotFoundError):
            await owner.delete("gone")


async def test_ids_that_no_database_could_hold_are_unknown(tenancy: Tenancy) -> None:
    for owner in (tenancy.organisations, tenancy.tiers, tenancy.tenants, tenancy.api_keys):
        with pytest.raises(NotFoundError):
            await owner.records.get("a\0b")
    assert (await tenancy.tenants.page(organisation="a\0b")).rows == []
    assert (await tenancy.api_keys.page(tenant="a\0b")).rows == []
