"""Tiers limit keys, tenants and organisations; a key that is looked up knows all of them."""

import pytest

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.keys import Authenticator, hash_key
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.errors import ConflictError, InvalidRequestError

REJECT = {"on_limit": "reject"}


async def test_a_key_knows_the_limits_of_all_three(tenancy: Tenancy) -> None:
    await tenancy.tiers.create("many", {"requests_per_minute": 100, "on_limit": "queue"})
    await tenancy.tiers.create("few", {"concurrent_requests": 2, **REJECT})
    await tenancy.tiers.create("nothing", REJECT)
    await tenancy.organisations.create("acme", tier="many")
    await tenancy.tenants.create("t", organisation="acme", tier="few")
    _, secret = await tenancy.api_keys.create("t", tier="nothing")
    key = await tenancy.api_keys.find_key(hash_key(secret))
    assert key is not None
    assert (key.organisation, set(key.tiers)) == ("acme", {"many", "few", "nothing"})
    assert key.scopes == (
        LimitScope("tenant", "t", concurrent_requests=2),
        LimitScope("organisation", "acme", requests_per_minute=100, is_queueing=True),
    )


async def test_without_tiers_nothing_is_limited(tenancy: Tenancy) -> None:
    await tenancy.tenants.create("t", organisation="default")
    _, secret = await tenancy.api_keys.create("t")
    key = await tenancy.api_keys.find_key(hash_key(secret))
    assert key is not None
    assert (key.tiers, key.scopes) == ((), ())


@pytest.mark.parametrize(
    ("tenant", "organisation", "weight"),
    [(None, None, 1.0), (None, "heavy", 4.0), ("light", "heavy", 0.5), ("plain", "heavy", 1.0)],
)
async def test_a_tenant_weighs_what_the_nearest_tier_says(
    tenancy: Tenancy, tenant: str | None, organisation: str | None, weight: float
) -> None:
    await tenancy.tiers.create("heavy", {"weight": 4.0, **REJECT})
    await tenancy.tiers.create("light", {"weight": 0.5, **REJECT})
    await tenancy.tiers.create("plain", REJECT)
    await tenancy.organisations.create("acme", tier=organisation)
    await tenancy.tenants.create("t", organisation="acme", tier=tenant)
    _, secret = await tenancy.api_keys.create("t", tier="heavy")
    key = await tenancy.api_keys.find_key(hash_key(secret))
    assert key is not None
    assert key.weight == weight


async def test_a_rotated_key_keeps_its_tier(tenancy: Tenancy) -> None:
    await tenancy.tiers.create("few", {"concurrent_requests": 2, **REJECT})
    await tenancy.tenants.create("t", organisation="default")
    row, _ = await tenancy.api_keys.create("t", tier="few")
    new, _ = await tenancy.api_keys.rotate(row["api_key_id"], overlap_seconds=60)
    assert new["tier"] == "few"


@pytest.mark.parametrize("noun", ["organisations", "tenants", "keys"])
async def test_a_tier_that_somebody_has_stays(tenancy: Tenancy, noun: str) -> None:
    await tenancy.tiers.create("few", {"concurrent_requests": 2, **REJECT})
    await tenancy.organisations.create("acme", tier="few" if noun == "organisations" else None)
    await tenancy.tenants.create(
        "t", organisation="acme", tier="few" if noun == "tenants" else None
    )
    key, _ = await tenancy.api_keys.create("t", tier="few" if noun == "keys" else None)
    with pytest.raises(ConflictError, match=f"{noun} have the tier 'few'"):
        await tenancy.tiers.delete("few")
    await tenancy.organisations.update("acme", {"tier": None})
    await tenancy.tenants.update("t", {"tier": None})
    await tenancy.api_keys.revoke(key["api_key_id"])
    await tenancy.tiers.delete("few")
    assert (await tenancy.api_keys.records.get(key["api_key_id"]))["tier"] is None


async def test_a_tier_that_is_named_must_exist(tenancy: Tenancy) -> None:
    await tenancy.tenants.create("t", organisation="default")
    key, _ = await tenancy.api_keys.create("t")
    for call in (
        tenancy.organisations.create("acme", tier="no"),
        tenancy.organisations.update("default", {"tier": "no"}),
        tenancy.api_keys.create("t", tier="no"),
        tenancy.api_keys.update(key["api_key_id"], {"tier": "no"}),
    ):
        with pytest.raises(InvalidRequestError, match="there is no tier 'no'"):
            await call


async def test_changes_are_news_for_all_keys_that_they_concern(
    tenancy: Tenancy, announced: list[AccountChange]
) -> None:
    await tenancy.tiers.create("few", {"concurrent_requests": 2, **REJECT})
    await tenancy.organisations.create("acme", tier="few")
    await tenancy.tenants.create("t", organisation="acme")
    _, secret = await tenancy.api_keys.create("t")
    authenticator = Authenticator(tenancy.api_keys)
    header = f"Bearer {secret}"

    async def limit() -> int | None:
        scopes = (await authenticator.authenticate(header)).scopes
        return scopes[0].concurrent_requests if scopes else None

    assert await limit() == 2
    announced.clear()
    await tenancy.tiers.update("few", {"concurrent_requests": 3})
    assert await limit() == 2  # remembered
    (change,) = announced
    authenticator.forget(change)
    assert await limit() == 3
    await tenancy.organisations.update("acme", {"tier": None})
    authenticator.forget(announced[-1])
    assert await limit() is None
