"""Answers of this replica's, by tenant and key; the tokens alone, so each is written afresh.

What is kept is JSON text, so the bytes that are counted are those that are held.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from pagoda_gateway import metrics
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.replay import KeptOutput

MAX_KEEP_SECONDS = 30 * 86_400.0
ENTRY_BYTES = 512  # of an answer beside its text: key, expiry, places in dicts


@dataclass(frozen=True, slots=True)
class _Kept:
    text: bytes
    expires_seconds: float


class ResponseCache:
    """Within a sum of bytes; beyond it, the tenant that holds most loses its oldest."""

    def __init__(self, max_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._tenants: dict[str, dict[str, _Kept]] = {}  # oldest first
        self._num_bytes: dict[str, int] = defaultdict(int)

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return sum(self._num_bytes.values())

    def get(self, tenant: str, key: str) -> list[KeptOutput] | None:
        """Return an answer's outputs; None if there is none."""
        kept = self._tenants.get(tenant, {}).get(key)
        if kept is None or kept.expires_seconds <= self._clock():
            metrics.CACHED_ANSWERS.labels("miss").inc()
            return None
        metrics.CACHED_ANSWERS.labels("hit").inc()
        outputs = orjson.loads(kept.text)
        return [KeptOutput(tuple(ids), reason, matched) for ids, reason, matched in outputs]

    def put(self, key: str, generation: Generation, *, ttl_seconds: float) -> None:
        """Keep the answer of a generation that is over, in place of its former one.

        One that was cut short is none, and for one that is too large there is no room.
        """
        outputs = [KeptOutput.of(sequence) for sequence in generation.sequences]
        values = [
            (output.token_ids, output.finish_reason, output.matched_stop_id)
            for output in outputs
            if output is not None
        ]
        if len(values) < len(outputs):
            return
        tenant, text = generation.identity.tenant, orjson.dumps(values)
        self._drop_expired()
        if key in self._tenants.get(tenant, {}):
            self._drop(tenant, key)
        expires = self._clock() + min(ttl_seconds, MAX_KEEP_SECONDS)
        self._tenants.setdefault(tenant, {})[key] = _Kept(text, expires)
        self._num_bytes[tenant] += len(text) + ENTRY_BYTES
        while self.num_bytes > self._max_bytes:
            largest = max(self._num_bytes, key=self._num_bytes.__getitem__)
            self._drop(largest, next(iter(self._tenants[largest])))

    def _drop(self, tenant: str, key: str) -> None:
        answers = self._tenants[tenant]
        self._num_bytes[tenant] -= len(answers.pop(key).text) + ENTRY_BYTES
        if not answers:
            del self._tenants[tenant], self._num_bytes[tenant]

    def _drop_expired(self) -> None:
        now = self._clock()
        for tenant, answers in list(self._tenants.items()):
            for key, kept in list(answers.items()):
                if kept.expires_seconds > now:
                    break
                self._drop(tenant, key)
