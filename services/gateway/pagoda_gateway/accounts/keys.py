"""Bearer keys: who asks. Keys are looked up by hash; answers are remembered for a short while.

What nobody has asked with before costs a look-up, so each address has few of those: who guesses
keys does not keep the ledger from its work. News of a changed key makes what is remembered stale.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.errors import (
    AuthenticationError,
    ForbiddenError,
    OverloadedError,
    UnavailableError,
    shorten,
)

logger = logging.getLogger(__name__)

FORGET_WRONG_SECONDS = 1.0  # a key may be made the next moment
LOOKUPS_PER_SECOND = 20.0  # of unknown keys, from one address
MAX_LOOKUP_BURST = 60.0
MAX_ADDRESSES = 10_000
IPV6_NETWORK_BITS = 64  # one customer's network: it has more addresses than anybody can count
REMEMBER_SECONDS = 10.0  # a revoked key works no longer than this, if news of it does not arrive
TRUST_SECONDS = 900.0  # a key that was good goes on for so long while the ledger does not answer
PAUSE_SECONDS = 5.0  # before it is asked again for such a key
MAX_REMEMBERED = 10_000
MAX_KEY_CHARS = 512
RETRY_AFTER_SECONDS = 1.0
LOOKUP_SECONDS = 5.0
RECHECK_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose key it is, and what it may.

    Attributes:
        api_key_id: its name, which is no secret.
        tenant: whom its requests belong to.
        models: names of models it may ask for; None: all.
        expires_unix_seconds: when it ends; None: never.
        organisation: whose tenant that is.
        tiers: of key, tenant and organisation, those that have one.
        scopes: those of the three that have limits.
        weight: of the tenant, where it shares a worker with others.
    """

    api_key_id: str
    tenant: str
    models: tuple[str, ...] | None = None
    expires_unix_seconds: float | None = None
    organisation: str = ""
    tiers: tuple[str, ...] = ()
    scopes: tuple[LimitScope, ...] = ()
    weight: float = 1.0

    def check_model(self, name: str, *, asked_as: str = "") -> None:
        """Raise ForbiddenError unless the key may ask for this model, which has other names too."""
        if not self.may_use(name):
            allowed = ", ".join(f"'{model}'" for model in self.models or ())
            why = f"it may use {allowed}"
            if self.may_use(asked_as):
                why = f"{shorten(asked_as)}, which it lists, stands for that: list it by that name"
            raise ForbiddenError(
                f"this API key may not use the model {shorten(name)}; {why}", param="model"
            )

    def may_use(self, name: str) -> bool:
        """Return whether the key may ask for this model."""
        return self.models is None or name in self.models


def hash_key(secret: str) -> str:
    """Return what is stored of an API key; keys are long random strings, so no salt is needed."""
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"pagoda.api.key").hexdigest()


@dataclass(frozen=True, slots=True)
class _Known:
    """What the ledger said of a key, None: nobody's. Times are the clock's."""

    key: ApiKey | None
    fresh_until: float = -math.inf
    trusted_until: float = -math.inf  # if the ledger does not answer


class KeyStore(Protocol):
    """Where keys are: the ledger."""

    async def find_key(self, key_hash: str) -> ApiKey | None:
        """Return the key with this hash unless it is revoked; it may be expired."""


class Authenticator:
    """Turns an Authorization header into an API key's owner."""

    def __init__(
        self,
        store: KeyStore,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_clock: Callable[[], float] = time.time,
        on_use: Callable[[str], None] = lambda api_key_id: None,
    ) -> None:
        """Remember nothing yet; `on_use` hears the id of each key that lets somebody in."""
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self._on_use = on_use
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lookups: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._num_changes = 0

    def forget(self, change: AccountChange) -> None:
        """Ask again for the keys that have changed, and trust them no more until then."""
        self._num_changes += 1
        for digest, known in self._known.items():
            if known.key is not None and _is_about(change, known.key):
                # It stays known: to ask again for what was good costs its address nothing.
                self._known[digest] = _Known(known.key)

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
        secret = _bearer(header)
        key = await self._lookup(secret, address) if len(secret) <= MAX_KEY_CHARS else None
        if key is None:
            raise AuthenticationError("Incorrect API key provided.")
        if key.expires_unix_seconds is not None and key.expires_unix_seconds <= self._wall_clock():
            raise AuthenticationError("This API key is expired. Ask for another one.")
        self._on_use(key.api_key_id)
        return key

    async def _lookup(self, secret: str, address: str) -> ApiKey | None:
        digest = hash_key(secret)
        known = self._known.get(digest)
        if known is not None and known.fresh_until > self._clock():
            return known.key
        was_good = known is not None and known.key is not None
        try:
            async with asyncio.timeout(RECHECK_SECONDS if was_good else LOOKUP_SECONDS):
                async with self._asking.setdefault(digest, asyncio.Lock()):  # one asks for all
                    return await self._find(digest, address)
        except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
            logger.warning("the ledger does not answer for a key: %r", error)
            known = self._known.get(digest)  # it may have changed meanwhile
            if known is not None and known.key and self._clock() < known.trusted_until:
                until = min(self._clock() + PAUSE_SECONDS, known.trusted_until)
                self._known[digest] = replace(known, fresh_until=until)
                return known.key
            raise UnavailableError(
                "API keys cannot be checked now; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from error

    async def _find(self, digest: str, address: str) -> ApiKey | None:
        known = self._known.get(digest)
        if known is not None and known.fresh_until > self._clock():
            return known.key
        if known is None or known.key is None:
            self._spend_lookup(address)
        num_changes = self._num_changes
        key = await self._store.find_key(digest)
        if key is not None and num_changes != self._num_changes:
            return key  # it was read before a change, of this key perhaps: not to be remembered
        until = self._clock() + (FORGET_WRONG_SECONDS if key is None else REMEMBER_SECONDS)
        _remember(self._known, digest, _Known(key, until, until + TRUST_SECONDS), MAX_REMEMBERED)
        return key

    def _spend_lookup(self, address: str) -> None:
        """Take one from the address's bucket; it fills up with time."""
        now, address = self._clock(), _network(address)
        since, left = self._lookups.get(address, (now, MAX_LOOKUP_BURST))
        left = min(MAX_LOOKUP_BURST, left + (now - since) * LOOKUPS_PER_SECOND)
        if left < 1:
            raise OverloadedError(
                f"too many unknown API keys from this address; it may try {LOOKUPS_PER_SECOND:g} "
                "a second",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        _remember(self._lookups, address, (now, left - 1), MAX_ADDRESSES)


class AdminKey:
    """The key of the administration, of which there is one; it is no API key."""

    def __init__(self, secret: str) -> None:
        self._digest = hash_key(secret)

    def check(self, header: str | None) -> None:
        """Raise AuthenticationError unless an Authorization header has the key."""
        if not hmac.compare_digest(self._digest, hash_key(_bearer(header))):
            raise AuthenticationError("Incorrect key of the administration provided.")


def _is_about(change: AccountChange, key: ApiKey) -> bool:
    return (
        key.api_key_id == change.api_key_id
        or key.tenant == change.tenant
        or (bool(key.organisation) and key.organisation == change.organisation)
        or change.tier in key.tiers
    )


def _bearer(header: str | None) -> str:
    scheme, _, secret = (header or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise AuthenticationError(
            "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY' "
            "or 'x-api-key: YOUR_KEY'."
        )
    return secret


def _network(address: str) -> str:
    """Return whose address it is: an IPv4 address, or the network of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))


def _remember(memory: OrderedDict[str, T], name: str, value: T, limit: int) -> None:
    memory[name] = value
    memory.move_to_end(name)
    while len(memory) > limit:
        memory.popitem(last=False)
