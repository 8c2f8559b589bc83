"""Values kept for tenants in this process's memory: responses, answers. Knows no field of them.

What is kept is JSON text, so the bytes that are counted are those that are held.
"""

import math
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
    is_pinned: bool


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
        is_pinned: bool = False,
    ) -> bool:
        """Keep a value in place of its former one; return whether there was room for it.

        Args:
            tenant: whose it is.
            name: of it.
            value: JSON.
            keep_seconds: for this one; the same or less than for all.
            is_pinned: it stays until it is deleted, or another one is put in its place.
        """
        self._drop_expired()
        if name in self._tenants.get(tenant, {}):
            self.delete(tenant, name)
        text = orjson.dumps(value)
        keep_seconds = min(keep_seconds or self._keep_seconds, self._keep_seconds)
        until = math.inf if is_pinned else self._clock() + keep_seconds
        kept = _Kept(text, until, is_pinned)
        self._tenants.setdefault(tenant, {})[name] = kept
        self._num_bytes[tenant] += len(text) + ENTRY_BYTES
        while self.num_bytes > self._max_bytes:
            if not self._drop_oldest_of_largest():
                self.delete(tenant, name)
        return name in self._tenants.get(tenant, {})

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

    def _drop_oldest_of_largest(self) -> bool:
        """Forget a value of the tenant that holds most; False: all are pinned."""
        for tenant in sorted(self._num_bytes, key=self._num_bytes.__getitem__, reverse=True):
            values = self._tenants[tenant]
            name = next((name for name, kept in values.items() if not kept.is_pinned), None)
            if name is not None:
                self.delete(tenant, name)
                return True
        return False

    def _drop_expired(self) -> None:
        now = self._clock()
        for tenant, values in list(self._tenants.items()):
            for name, kept in list(values.items()):
                if kept.is_pinned:
                    continue
                if kept.expires_seconds > now:
                    break
                self.delete(tenant, name)
