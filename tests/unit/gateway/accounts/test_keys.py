"""Keys are stored hashed, and only valid ones let anybody in."""

import asyncio
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey, Authenticator, hash_key
from pagoda_gateway.accounts.tenancy.tables import API_KEYS
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.errors import (
    AuthenticationError,
    ForbiddenError,
    OverloadedError,
    UnavailableError,
)


async def test_key_is_found_by_secret_only_and_never_stored(
    tenancy: Tenancy, database: Database
) -> None:
    key_id, secret = await tenancy.api_keys.ensure("t", "laptop")
    key = await Authenticator(tenancy.api_keys).authenticate(f"Bearer {secret}")
    assert (key.tenant, key.api_key_id) == ("t", key_id)
    (row,) = await database.rows(sa.select(API_KEYS))
    assert secret not in str(dict(row))
    assert row["prefix"] == secret[:14]


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer sk-wrong", "Bearer " + "x" * 9999],
)
async def test_no_valid_key(tenancy: Tenancy, header: str | None) -> None:
    with pytest.raises(AuthenticationError):
        await Authenticator(tenancy.api_keys).authenticate(header)


async def test_revoked_key_works_no_longer_than_it_is_remembered(tenancy: Tenancy) -> None:
    now = 0.0
    authenticator = Authenticator(tenancy.api_keys, clock=lambda: now)
    key_id, secret = await tenancy.api_keys.ensure("t", "laptop")
    await authenticator.authenticate(f"Bearer {secret}")
    await tenancy.api_keys.revoke(key_id)
    now = 11.0
    with pytest.raises(AuthenticationError):
        await authenticator.authenticate(f"Bearer {secret}")


@pytest.mark.parametrize(
    "change", [AccountChange(api_key_id="key-1"), AccountChange(tenant="t")], ids=["key", "tenant"]
)
async def test_news_of_a_change_makes_it_ask_again(change: AccountChange) -> None:
    store = CountingStore()
    authenticator = Authenticator(store)
    await authenticator.authenticate("Bearer sk-good")
    authenticator.forget(AccountChange(api_key_id="key-2", tenant="other"))
    await authenticator.authenticate("Bearer sk-good")
    assert store.num_asked == 1
    authenticator.forget(change)
    store.good = "sk-another"
    with pytest.raises(AuthenticationError):
        await authenticator.authenticate("Bearer sk-good")
    assert store.num_asked == 2


async def test_a_changed_key_is_not_trusted_while_the_ledger_does_not_answer() -> None:
    store = CountingStore()
    authenticator = Authenticator(store)
    await authenticator.authenticate("Bearer sk-good")
    authenticator.forget(AccountChange(tenant="t"))
    store.error = TimeoutError()
    with pytest.raises(UnavailableError):
        await authenticator.authenticate("Bearer sk-good")


async def test_news_while_a_key_is_looked_up_is_not_lost() -> None:
    store = CountingStore()
    authenticator = Authenticator(store)
    store.while_asked = lambda: authenticator.forget(AccountChange(api_key_id="key-1"))
    await authenticator.authenticate("Bearer sk-good")  # read before the change
    store.good = "sk-another"
    with pytest.raises(AuthenticationError):
        await authenticator.authenticate("Bearer sk-good")


async def test_asking_again_after_changes_costs_an_address_nothing() -> None:
    store = CountingStore()
    authenticator = Authenticator(store, clock=lambda: 0.0)
    for _ in range(200):
        await authenticator.authenticate("Bearer sk-good", address="10.0.0.1")
        authenticator.forget(AccountChange(tenant="t"))
    assert store.num_asked == 200


async def test_an_expired_key_ends_on_time_however_long_it_is_remembered() -> None:
    store, wall = CountingStore(), 99.0
    store.expires_unix_seconds = 100.0
    authenticator = Authenticator(store, clock=lambda: 0.0, wall_clock=lambda: wall)
    await authenticator.authenticate("Bearer sk-good")
    wall = 100.0
    with pytest.raises(AuthenticationError, match="expired"):
        await authenticator.authenticate("Bearer sk-good")


async def test_only_keys_that_let_somebody_in_are_used() -> None:
    used: list[str] = []
    store = CountingStore()
    authenticator = Authenticator(store, wall_clock=lambda: 50.0, on_use=used.append)
    await authenticator.authenticate("Bearer sk-good")
    store.expires_unix_seconds = 1.0
    authenticator.forget(AccountChange(tenant="t"))
    for secret in ("sk-good", "sk-wrong"):
        with pytest.raises(AuthenticationError):
            await authenticator.authenticate(f"Bearer {secret}")
    assert used == ["key-1"]


def test_a_key_for_some_models_names_them() -> None:
    key = ApiKey("key-1", "t", models=("small", "large"))
    key.check_model("large")
    with pytest.raises(ForbiddenError, match="'huge'; it may use 'small', 'large'") as caught:
        key.check_model("huge")
    assert caught.value.status == 403


class CountingStore:
    """Knows one key; counts how often it is asked, and fails on demand."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.error: Exception | None = None
        self.good = "sk-good"
        self.expires_unix_seconds: float | None = None
        self.while_asked: Callable[[], None] = lambda: None

    async def find_key(self, key_hash: str) -> ApiKey | None:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        is_good = key_hash == hash_key(self.good)
        self.while_asked()
        if not is_good:
            return None
        return ApiKey("key-1", "t", expires_unix_seconds=self.expires_unix_seconds)


async def test_wrong_keys_cost_few_look_ups() -> None:
    store, now = CountingStore(), 0.0
    authenticator = Authenticator(store, clock=lambda: now)
    outcomes = set()
    for number in range(1000):
        for _ in range(2):
            with pytest.raises((AuthenticationError, OverloadedError)) as caught:
                await authenticator.authenticate(f"Bearer sk-{number}", address="10.0.0.1")
            outcomes.add(caught.value.status)
    assert outcomes == {401, 429}
    assert store.num_asked == 60
    assert (await authenticator.authenticate("Bearer sk-good", address="10.0.0.2")).tenant == "t"
    now = 20.0  # forgotten, but known: it costs its address nothing
    for _ in range(60):
        with pytest.raises(AuthenticationError):
            await authenticator.authenticate(f"Bearer sk-{now}", address="10.0.0.2")
        now += 0.001
    assert (await authenticator.authenticate("Bearer sk-good", address="10.0.0.2")).tenant == "t"


async def test_the_addresses_of_one_ipv6_network_share_their_look_ups() -> None:
    store = CountingStore()
    authenticator = Authenticator(store, clock=lambda: 0.0)
    for number in range(100):
        with pytest.raises((AuthenticationError, OverloadedError)):
            await authenticator.authenticate(f"Bearer {number}", address=f"2001:db8::{number:x}")
    assert store.num_asked == 60
    with pytest.raises(AuthenticationError):
        await authenticator.authenticate("Bearer other", address="2001:db8:0:1::1")
    assert store.num_asked == 61


async def test_wrong_key_is_asked_for_again_after_a_second() -> None:
    store, now = CountingStore(), 0.0
    authenticator = Authenticator(store, clock=lambda: now)
    for asked, moment in ((1, 0.0), (1, 0.9), (2, 1.1)):
        now = moment
        with pytest.raises(AuthenticationError):
            await authenticator.authenticate("Bearer sk-new")
        assert store.num_asked == asked


@pytest.mark.parametrize("error", [TimeoutError(), OperationalError("select", {}, OSError())])
async def test_ledger_that_does_not_answer_is_a_503(error: Exception) -> None:
    store = CountingStore()
    store.error = error
    with pytest.raises(UnavailableError) as caught:
        await Authenticator(store).authenticate("Bearer sk-good")
    assert (caught.value.status, caught.value.headers()) == (503, {"retry-after": "1"})


async def test_many_requests_with_one_key_ask_once() -> None:
    store = CountingStore()
    authenticator = Authenticator(store)
    await asyncio.gather(*(authenticator.authenticate("Bearer sk-good") for _ in range(200)))
    assert store.num_asked == 1


async def test_a_good_key_outlives_a_ledger_that_does_not_answer() -> None:
    store, now = CountingStore(), 0.0
    authenticator = Authenticator(store, clock=lambda: now)
    await authenticator.authenticate("Bearer sk-good")
    store.error = TimeoutError()
    for moment in (11.0, 12.0, 905.0, 909.0):
        now = moment
        assert (await authenticator.authenticate("Bearer sk-good")).tenant == "t"
    assert store.num_asked == 3  # not by each request
    now = 911.0
    with pytest.raises(UnavailableError):
        await authenticator.authenticate("Bearer sk-good")
