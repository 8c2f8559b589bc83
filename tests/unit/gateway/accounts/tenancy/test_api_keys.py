"""Keys are made, changed, rotated and revoked; everybody hears of it."""

import pytest
import pytest_asyncio
from support.clocks import Now

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.keys import hash_key
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.errors import ConflictError, InvalidRequestError, NotFoundError


@pytest_asyncio.fixture
async def tenant(tenancy: Tenancy) -> str:
    return str((await tenancy.tenants.create("t", organisation="default"))["tenant"])


async def test_a_key_is_found_with_what_it_may(tenancy: Tenancy, tenant: str) -> None:
    row, secret = await tenancy.api_keys.create(
        tenant, label="laptop", models=["a", "b"], expires_unix_seconds=2e6
    )
    found = await tenancy.api_keys.find_key(hash_key(secret))
    assert found is not None
    assert (found.api_key_id, found.tenant) == (row["api_key_id"], "t")
    assert (found.models, found.expires_unix_seconds) == (("a", "b"), 2e6)
    assert secret.startswith(row["prefix"])


async def test_storing_a_secret_again_keeps_its_key(tenancy: Tenancy) -> None:
    first, _ = await tenancy.api_keys.ensure("t", "a", "sk-same")
    await tenancy.api_keys.revoke(first)
    second, _ = await tenancy.api_keys.ensure("t", "b", "sk-same")
    assert first == second
    assert await tenancy.api_keys.find_key(hash_key("sk-same")) is None


async def test_nothing_of_a_short_secret_is_shown(tenancy: Tenancy) -> None:
    key_id, _ = await tenancy.api_keys.ensure("t", "a", "sk-same")
    assert (await tenancy.api_keys.records.get(key_id))["prefix"] == ""


async def test_a_key_needs_a_tenant(tenancy: Tenancy) -> None:
    with pytest.raises(InvalidRequestError, match="no tenant 'nobody'") as caught:
        await tenancy.api_keys.create("nobody")
    assert caught.value.param == "tenant"


async def test_revoking_is_announced_and_repeatable(
    tenancy: Tenancy, tenant: str, announced: list[AccountChange]
) -> None:
    row, secret = await tenancy.api_keys.create(tenant)
    revoked = await tenancy.api_keys.revoke(row["api_key_id"])
    assert await tenancy.api_keys.revoke(row["api_key_id"]) == revoked
    assert announced[0] == AccountChange(api_key_id=row["api_key_id"])
    assert await tenancy.api_keys.find_key(hash_key(secret)) is None


async def test_rotated_keys_overlap(tenancy: Tenancy, tenant: str, now: Now) -> None:
    old, old_secret = await tenancy.api_keys.create(tenant, label="laptop", models=["a"])
    new, new_secret = await tenancy.api_keys.rotate(old["api_key_id"], overlap_seconds=60)
    assert (new["label"], new["models"], new["tenant"]) == ("laptop", ["a"], "t")
    assert new["expires_unix_seconds"] is None
    found = await tenancy.api_keys.find_key(hash_key(old_secret))
    assert found is not None
    assert found.expires_unix_seconds == now() + 60
    assert await tenancy.api_keys.find_key(hash_key(new_secret)) is not None
    kept = await tenancy.api_keys.records.get(old["api_key_id"])
    assert kept["rotated_to"] == new["api_key_id"]


async def test_a_rotated_key_lives_as_long_again(tenancy: Tenancy, tenant: str, now: Now) -> None:
    born = now()
    old, _ = await tenancy.api_keys.create(tenant, expires_unix_seconds=born + 100)
    now.seconds += 90
    new, _ = await tenancy.api_keys.rotate(old["api_key_id"], overlap_seconds=3600)
    assert new["expires_unix_seconds"] == born + 190
    kept = await tenancy.api_keys.records.get(old["api_key_id"])
    assert kept["expires_unix_seconds"] == born + 100  # the overlap makes nothing longer


async def test_only_a_key_in_use_is_rotated(tenancy: Tenancy, tenant: str, now: Now) -> None:
    old, _ = await tenancy.api_keys.create(tenant)
    new, _ = await tenancy.api_keys.rotate(old["api_key_id"], overlap_seconds=60)
    with pytest.raises(ConflictError, match=f"rotate {new['api_key_id']}"):
        await tenancy.api_keys.rotate(old["api_key_id"], overlap_seconds=60)
    await tenancy.api_keys.revoke(new["api_key_id"])
    with pytest.raises(ConflictError, match="revoked"):
        await tenancy.api_keys.rotate(new["api_key_id"], overlap_seconds=60)
    short, _ = await tenancy.api_keys.create(tenant, expires_unix_seconds=now() + 1)
    now.seconds += 1
    with pytest.raises(ConflictError, match="expired"):
        await tenancy.api_keys.rotate(short["api_key_id"], overlap_seconds=60)
    with pytest.raises(NotFoundError):
        await tenancy.api_keys.rotate("key-0", overlap_seconds=60)


async def test_a_key_is_changed(
    tenancy: Tenancy, tenant: str, announced: list[AccountChange]
) -> None:
    row, secret = await tenancy.api_keys.create(tenant, models=["a"])
    changed = await tenancy.api_keys.update(row["api_key_id"], {"models": None, "label": "new"})
    assert (changed["models"], changed["label"]) == (None, "new")
    found = await tenancy.api_keys.find_key(hash_key(secret))
    assert found is not None
    assert found.models is None
    assert announced == [AccountChange(api_key_id=row["api_key_id"])]


@pytest.mark.parametrize("seconds", [0, 1e6])
async def test_no_key_is_born_expired(tenancy: Tenancy, tenant: str, seconds: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await tenancy.api_keys.create(tenant, expires_unix_seconds=seconds)
    assert caught.value.param == "expires_at"


async def test_the_last_use_never_goes_back(tenancy: Tenancy, tenant: str) -> None:
    key_id = (await tenancy.api_keys.create(tenant))[0]["api_key_id"]
    for moment in (50.0, 70.0, 60.0):
        await tenancy.api_keys.note_used({key_id: moment, "key-0": moment})
    assert (await tenancy.api_keys.records.get(key_id))["last_used_unix_seconds"] == 70.0


async def test_pages_of_keys_end(tenancy: Tenancy, tenant: str) -> None:
    names = {(await tenancy.api_keys.create(tenant))[0]["api_key_id"] for _ in range(5)}
    await tenancy.api_keys.ensure("other", "a")
    seen: list[str] = []
    has_more = True
    while has_more:
        page = await tenancy.api_keys.page(tenant=tenant, after=seen[-1] if seen else "", limit=2)
        seen += [row["api_key_id"] for row in page.rows]
        has_more = page.has_more
    assert seen == sorted(names)
