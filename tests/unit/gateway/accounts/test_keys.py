"""Keys are stored hashed, and only valid ones let anybody in."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from pagoda_gateway.accounts.keys import ApiKey, Authenticator, hash_key
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.errors import AuthenticationError, OverloadedError, UnavailableError


async def test_key_is_found_by_secret_only_and_never_stored(ledger: Ledger, tmp_path: Path) -> None:
    key_id, secret = await ledger.create_key("t", "laptop")
    authenticator = Authenticator(ledger)
    key = await authenticator.authenticate(f"Bearer {secret}")
    assert (key.tenant, key.api_key_id) == ("t", key_id)
    files = b"".join(path.read_bytes() for path in (tmp_path / "home").iterdir())
    assert secret.encode() not in files


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer sk-wrong", "Bearer " + "x" * 9999],
)
async def test_no_valid_key(ledger: Ledger, header: str | None) -> None:
    with pytest.raises(AuthenticationError):
        await Authenticator(ledger).authenticate(header)


async def test_revoked_key_works_no_longer_than_it_is_remembered(ledger: Ledger) -> None:
    now = 0.0
    authenticator = Authenticator(ledger, clock=lambda: now)
    key_id, secret = await ledger.create_key("t", "laptop")
    await authenticator.authenticate(f"Bearer {secret}")
    assert await ledger.revoke_key(key_id)
    assert not await ledger.revoke_key(key_id)
    now = 11.0
    with pytest.raises(AuthenticationError):
        await authenticator.authenticate(f"Bearer {secret}")


class CountingStore:
    """Knows one key; counts how often it is asked, and fails on demand."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.error: Exception | None = None

    async def find_key(self, key_hash: str) -> ApiKey | None:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        return ApiKey("key-1", "t") if key_hash == hash_key("sk-good") else None


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
    now = 69.0
    assert (await authenticator.authenticate("Bearer sk-good")).tenant == "t"
    now = 71.0
    with pytest.raises(UnavailableError):
        await authenticator.authenticate("Bearer sk-good")
