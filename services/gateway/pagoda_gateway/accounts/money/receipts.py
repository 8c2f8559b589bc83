"""Receipts: what one request used, what it took and what it cost, read from the ledger."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.accounts.database import comparable
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.price_book import PriceBook, is_billed
from pagoda_gateway.accounts.money.receipt_text import billed, cost, cost_of
from pagoda_gateway.accounts.prefixes.rows import prefix_section
from pagoda_gateway.accounts.tables import REQUEST_NAMES, USAGE
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages
from pagoda_gateway.accounts.usage_rows import DEFAULT_TIER, close_values, open_values
from pagoda_gateway.errors import NotFoundError, shorten

_POLL_SECONDS = 0.1  # another process may apply the record, then nobody tells us
_SEALING_SECONDS = 60.0


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

    async def get(self, tenant: str | None, name: str) -> dict[str, Any]:
        """Return the receipt of the last request with a name: our id, OpenAI's or the client's.

        Args:
            tenant: whose it must be; None: anybody's, then the client's own name does not do.
            name: of the request.

        Raises:
            NotFoundError: there is no such request, or it is not the tenant's.
        """
        give_up, pause = self._clock() + self._wait_seconds, _POLL_SECONDS
        while True:
            row = await self._ledger.database.call(lambda found: find_row(found, tenant, name))
            left = give_up - self._clock()
            if left <= 0 or (row is not None and self._is_complete(row)):
                break
            await self._ledger.wait_applied(min(left, pause))
            pause *= 2  # who asks for what is not there costs little
        if row is None:
            raise NotFoundError(f"no receipt for {shorten(name)}", param="request_id")
        receipt = receipt_of(row)
        compute_seconds = await self._sequences.compute_seconds(row["request_id"])
        if compute_seconds is not None:  # workers say it at the end of each sequence
            receipt["compute_seconds"] = compute_seconds
        return receipt

    def _is_complete(self, row: sa.RowMapping) -> bool:
        """Return whether nothing of a row is on its way."""
        closed = row["closed_unix_seconds"]
        if closed is None:
            return False
        # It is sealed a moment after it was closed; rows of earlier versions never are.
        is_sealed = row["receipt_number"] is not None
        return (
            is_sealed
            or not is_billed(row["service_tier"], row["outcome"])
            or self._ledger.database.now() > closed + _SEALING_SECONDS
        )


def find_row(connection: sa.Connection, tenant: str | None, name: str) -> sa.RowMapping | None:
    """Return the row of the last request called `name`; see `Receipts.get`.

    Each name is looked for by an index of its own: together they would be a search through all.
    """
    name = comparable(name)
    conditions: list[sa.ColumnElement[bool]] = [
        USAGE.c.request_id == name,
        USAGE.c.object_id == name,
    ]
    if tenant is not None:
        last = (
            sa.select(REQUEST_NAMES.c.request_id)
            .where(REQUEST_NAMES.c.tenant == tenant, REQUEST_NAMES.c.client_request_id == name)
            .order_by(REQUEST_NAMES.c.request_id.desc())  # ids are sorted by time
            .limit(1)
        )
        conditions.append(USAGE.c.request_id == last.scalar_subquery())
    for condition in conditions:
        for row in connection.execute(sa.select(USAGE).where(condition)).mappings():
            if tenant is None or row["tenant"] == tenant:
                return row
    return None


def receipt_of(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row of `USAGE` as a receipt; what is not known yet is missing."""
    receipt = {
        "object": "receipt",
        "request_id": row["request_id"],
        "id": row["object_id"],
        "status": "open" if row["closed_unix_seconds"] is None else "closed",
        "tenant": row["tenant"],
        "api_key_id": row["api_key_id"],
        "model": row["model"],
        "endpoint": row["endpoint"],
        "service_tier": row["service_tier"] or DEFAULT_TIER,
        "opened": row["opened_unix_seconds"],
    }
    if row["closed_unix_seconds"] is None:
        return receipt
    receipt |= billed(row) | {
        "finish_reasons": row["finish_reasons"],
        "ttft_ms": row["ttft_ms"],
        "e2e_ms": row["e2e_ms"],
        "stages_ms": row["stages_ms"],
        "workers": row["worker_ids"],
        "cached_answer": bool(row["is_cached_answer"]),
        "safety_findings": row["safety_findings"] or [],
        "speculation": {
            "proposed_tokens": row["proposed_tokens"] or 0,
            "accepted_tokens": row["accepted_tokens"] or 0,
        },
        "prefix": prefix_section(row),
    }
    if row["receipt_number"] is not None:
        receipt |= {
            "cost": cost(row),
            "number": row["receipt_number"],
            "previous_hash": row["previous_hash"],
            "hash": row["receipt_hash"],
        }
    return receipt


# What only the ledger knows, or the client too, or what has no bound.
_LATER = (
    "object",
    "status",
    "tenant",
    "api_key_id",
    "closed",
    "e2e_ms",
    "finish_reasons",
    "workers",
    "prefix",
)


def receipt_beside_answer(opened: UsageOpen, closed: UsageClose, book: PriceBook) -> dict[str, Any]:
    """Return the receipt that goes with the answer itself, before the ledger has it.

    Args:
        opened: as it was written before any token.
        closed: as it will be written if the client gets all of the answer.
        book: has the price that the request came in under.
    """
    priced = book.price(opened, closed)
    values = open_values(opened) | close_values(closed)
    receipt = receipt_of(values | {"receipt_number": None})
    lines = [line.as_json() for line in priced.lines]
    receipt["cost"] = cost_of(priced.total_micros, priced.price_id, lines)
    return {name: value for name, value in receipt.items() if name not in _LATER}
