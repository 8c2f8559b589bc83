"""Values kept for tenants in this process's memory. Knows no field of them.

What is kept is JSON text, so the bytes that are counted are those that are held.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

ENTRY_BYTES = 512  # of a value beside its text: name, expiry, places in dicts


@dataclass(frozen=True, slots=True)
class _Kept:
    text: bytes
    expires_seconds: float


class TenantValues:
    """Keeps JSON values by tenant and id, for a while and within a sum of bytes."""

    def __init__(
        self, *, max_bytes: int, keep_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty.

        Args:
            max_bytes: of all; beyond, the tenant that holds most loses its oldest.
            keep_seconds: nothing is found longer than this.
            clock: seconds.
        """
        self._max_bytes = max_bytes
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._tenants: dict[str, dict[str, _Kept]] = {}  # oldest first
        self._num_bytes: dict[str, int] = defaultdict(int)

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return sum(self._num_bytes.values())

    def put(
        self,
        tenant: str,
        name: str,
        value: Any,
        *,
        keep_seconds: float | None = None,
    ) -> None:
        """Keep a value in place of its former one, if there is room for it.

        Args:
            tenant: whose it is.
            name: of it.
            value: JSON.
            keep_seconds: for this one; the same or less than for all.
        """
        self._drop_expired()
        if name in self._tenants.get(tenant, {}):
            self.delete(tenant, name)
        text = orjson.dumps(value)
        keep_seconds = min(keep_seconds or self._keep_seconds, self._keep_seconds)
        self._tenants.setdefault(tenant, {})[name] = _Kept(text, self._clock() + keep_seconds)
        self._num_bytes[tenant] += len(text) + ENTRY_BYTES
        while self.num_bytes > self._max_bytes:
            largest = max(self._num_bytes, key=self._num_bytes.__getitem__)
            self.delete(largest, next(iter(self._tenants[largest])))

    def get(self, tenant: str, name: str) -> Any:
        """Return the tenant's value of this name; None if there is none."""
        kept = self._tenants.get(tenant, {}).get(name)
        if kept is None or kept.expires_seconds <= self._clock():
            return None
        return orjson.loads(kept.text)

    def delete(self, tenant: str, name: str) -> None:
        """Forget a value that is there."""
        values = self._tenants[tenant]
        self._num_bytes[tenant] -= len(values.pop(name).text) + ENTRY_BYTES
        if not values:
            del self._tenants[tenant], self._num_bytes[tenant]

    def _drop_expired(self) -> None:
        now = self._clock()
        for tenant, values in list(self._tenants.items()):
            for name, kept in list(values.items()):
                if kept.expires_seconds > now:
                    break
                self.delete(tenant, name)
