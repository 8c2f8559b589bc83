"""The latest outputs of each tenant, within a budget of bytes. Nobody finds another one's.

Knows tenants by a key. Knows nothing of requests.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from pagoda_engine.speculation.recent_outputs import NUM_BYTES, RecentOutputs

MIN_OUTPUT_TOKENS = 4
"""Shorter outputs teach nothing that is worth the time."""


class OutputsKey(NamedTuple):
    """Whose outputs they are, and of what: who differs in either shares nothing.

    Attributes:
        tenant: tag of the tenant.
        cache_root: covers the model, the adapter, the tenant and its salt, as for KV blocks.
    """

    tenant: bytes
    cache_root: bytes


class TenantOutputs:
    """`RecentOutputs` by key; who was not heard of for longest makes room."""

    def __init__(self, num_bytes: int) -> None:
        """Start empty.

        Args:
            num_bytes: for all of them; less than `NUM_BYTES`: nothing is kept.
        """
        self._max_tenants = num_bytes // NUM_BYTES
        self._by_key: OrderedDict[OutputsKey, RecentOutputs] = OrderedDict()

    def __len__(self) -> int:
        """Tenants of whom something is kept."""
        return len(self._by_key)

    def get(self, key: OutputsKey) -> RecentOutputs | None:
        """Return what a tenant's outputs said, if anything is kept. Not to be held on to."""
        return self._by_key.get(key)

    def add(
        self, key: OutputsKey, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]
    ) -> None:
        """Learn an output that has ended."""
        if not self._max_tenants or len(output_token_ids) < MIN_OUTPUT_TOKENS:
            return
        outputs = self._by_key.get(key)
        if outputs is None:
            if len(self._by_key) >= self._max_tenants:
                self._by_key.popitem(last=False)
            outputs = self._by_key[key] = RecentOutputs()
        self._by_key.move_to_end(key)
        outputs.add(prompt_token_ids, output_token_ids)
