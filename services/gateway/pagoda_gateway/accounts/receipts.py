"""Receipts: what one request used and what it took, read from the ledger."""

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import RowMapping

from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages
from pagoda_gateway.accounts.usage_rows import DEFAULT_TIER
from pagoda_gateway.errors import NotFoundError, shorten

_POLL_SECONDS = 0.1  # news of applied records may be missed


class Receipts:
    """Looks receipts up; waits a little for a close record that is on its way."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._sequences = SequenceUsages(ledger.database)
        self._wait_seconds = wait_seconds
        self._clock = clock

    async def get(self, tenant: str, name: str) -> dict[str, Any]:
        """Return the receipt of the tenant's request called `name` (see `Ledger.usage_of`).

        Raises:
            NotFoundError: this tenant has no such request.
        """
        give_up = self._clock() + self._wait_seconds
        while True:
            row = await self._ledger.usage_of(tenant, name)
            left = give_up - self._clock()
            if left <= 0 or (row is not None and row["closed_unix_seconds"] is not None):
                break
            await self._ledger.wait_applied(min(left, _POLL_SECONDS))
        if row is None:
            raise NotFoundError(f"no receipt for {shorten(name)}", param="request_id")
        receipt = _receipt(row)
        compute_seconds = await self._sequences.compute_seconds(row["request_id"])
        if compute_seconds is not None:  # workers say it at the end of each sequence
            receipt["compute_seconds"] = compute_seconds
        return receipt


def _receipt(row: RowMapping) -> dict[str, Any]:
    receipt: dict[str, Any] = {
        "object": "receipt",
        "request_id": row["request_id"],
        "id": row["object_id"],
        "status": "open" if row["closed_unix_seconds"] is None else "closed",
        "model": row["model"],
        "endpoint": row["endpoint"],
        "service_tier": row["service_tier"] or DEFAULT_TIER,
        "opened": row["opened_unix_seconds"],
    }
    if row["closed_unix_seconds"] is None:
        return receipt
    cached = {tier: row[f"cached_{tier}_tokens"] for tier in ("device", "cpu", "nvme")}
    return {
        **receipt,
        "closed": row["closed_unix_seconds"],
        "outcome": row["outcome"],
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": {"total": sum(cached.values()), **cached},
        "output_tokens": row["output_tokens"],
        "finish_reasons": row["finish_reasons"],
        "attempts": row["attempts"],
        "ttft_ms": row["ttft_ms"],
        "e2e_ms": row["e2e_ms"],
        "stages_ms": row["stages_ms"],
        "workers": row["worker_ids"],
    }
