"""Bearer keys: who asks. Keys are looked up by hash; answers are remembered for a short while."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pagoda_gateway.errors import AuthenticationError

REMEMBER_SECONDS = 10.0  # a revoked key works no longer than this
MAX_REMEMBERED = 10_000
MAX_KEY_CHARS = 512


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose key it is."""

    api_key_id: str
    tenant: str


def hash_key(secret: str) -> str:
    """Return what is stored of an API key; keys are long random strings, so no salt is needed."""
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"pagoda.api.key").hexdigest()


class KeyStore(Protocol):
    """Where keys are: the ledger."""

    async def find_key(self, key_hash: str) -> ApiKey | None:
        """Return the valid key with this hash."""


class Authenticator:
    """Turns an Authorization header into an API key's owner."""

    def __init__(self, store: KeyStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()

    async def authenticate(self, header: str | None) -> ApiKey:
        """Return whose key it is.

        Raises:
            AuthenticationError: no key, or none that is valid.
        """
        scheme, _, secret = (header or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise AuthenticationError(
                "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY'."
            )
        key = await self._lookup(secret) if len(secret) <= MAX_KEY_CHARS else None
        if key is None:
            raise AuthenticationError("Incorrect API key provided.")
        return key

    async def _lookup(self, secret: str) -> ApiKey | None:
        digest = hash_key(secret)
        now = self._clock()
        known = self._known.get(digest)
        if known is not None and known[0] > now:
            return known[1]
        key = await self._store.find_key(digest)
        if key is None:  # not remembered: a key may be made the next moment
            self._known.pop(digest, None)
            return None
        self._known[digest] = (now + REMEMBER_SECONDS, key)
        self._known.move_to_end(digest)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return key
