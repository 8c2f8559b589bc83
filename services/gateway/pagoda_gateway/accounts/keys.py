"""Bearer keys: who asks. Keys are looked up by hash; answers are remembered for a short while.

What nobody has asked with before costs a look-up, so each address has few of those: who guesses
keys does not keep the ledger from its work.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from pagoda_gateway.errors import AuthenticationError, OverloadedError, UnavailableError

logger = logging.getLogger(__name__)

FORGET_WRONG_SECONDS = 1.0  # a key may be made the next moment
LOOKUPS_PER_SECOND = 20.0  # of unknown keys, from one address
MAX_LOOKUP_BURST = 60.0
MAX_ADDRESSES = 10_000
REMEMBER_SECONDS = 10.0  # a revoked key works no longer than this, while the ledger answers
TRUST_SECONDS = 60.0  # a key that was good goes on for so long if it does not
MAX_REMEMBERED = 10_000
MAX_KEY_CHARS = 512
RETRY_AFTER_SECONDS = 1.0
LOOKUP_SECONDS = 5.0
RECHECK_SECONDS = 1.0

T = TypeVar("T")


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
        self._known: OrderedDict[str, tuple[float, ApiKey | None]] = OrderedDict()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lookups: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def authenticate(self, header: str | None, *, address: str = "") -> ApiKey:
        """Return whose key it is.

        Args:
            header: of the request.
            address: where it comes from.

        Raises:
            AuthenticationError: no key, or none that is valid.
            OverloadedError: too many unknown keys came from this address.
            UnavailableError: the ledger does not answer.
        """
        scheme, _, secret = (header or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise AuthenticationError(
                "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY' "
                "or 'x-api-key: YOUR_KEY'."
            )
        key = await self._lookup(secret, address) if len(secret) <= MAX_KEY_CHARS else None
        if key is None:
            raise AuthenticationError("Incorrect API key provided.")
        return key

    async def _lookup(self, secret: str, address: str) -> ApiKey | None:
        digest = hash_key(secret)
        known = self._known.get(digest)
        if known is not None and known[0] > self._clock():
            return known[1]
        was_good = None if known is None else known[1]
        try:
            async with asyncio.timeout(RECHECK_SECONDS if was_good else LOOKUP_SECONDS):
                async with self._asking.setdefault(digest, asyncio.Lock()):  # one asks for all
                    return await self._find(digest, address)
        except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
            logger.warning("the ledger does not answer for a key: %r", error)
            if known is not None and was_good and self._clock() < known[0] + TRUST_SECONDS:
                return was_good
            raise UnavailableError(
                "API keys cannot be checked now; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from error

    async def _find(self, digest: str, address: str) -> ApiKey | None:
        known = self._known.get(digest)
        if known is not None and known[0] > self._clock():
            return known[1]
        if known is None or known[1] is None:
            self._spend_lookup(address)
        key = await self._store.find_key(digest)
        seconds = FORGET_WRONG_SECONDS if key is None else REMEMBER_SECONDS
        _remember(self._known, digest, (self._clock() + seconds, key), MAX_REMEMBERED)
        return key

    def _spend_lookup(self, address: str) -> None:
        """Take one from the address's bucket; it fills up with time."""
        now = self._clock()
        since, left = self._lookups.get(address, (now, MAX_LOOKUP_BURST))
        left = min(MAX_LOOKUP_BURST, left + (now - since) * LOOKUPS_PER_SECOND)
        if left < 1:
            raise OverloadedError(
                f"too many unknown API keys from this address; it may try {LOOKUPS_PER_SECOND:g} "
                "a second",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        _remember(self._lookups, address, (now, left - 1), MAX_ADDRESSES)


def _remember(memory: OrderedDict[str, T], name: str, value: T, limit: int) -> None:
    memory[name] = value
    memory.move_to_end(name)
    while len(memory) > limit:
        memory.popitem(last=False)
