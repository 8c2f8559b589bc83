"""Keys are stored hashed, and only valid ones let anybody in."""

from pathlib import Path

import pytest

from pagoda_gateway.accounts.keys import Authenticator
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.errors import AuthenticationError


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
