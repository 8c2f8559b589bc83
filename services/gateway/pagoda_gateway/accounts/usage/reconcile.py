"""Closes what gateways that are gone have left open.

What clients had is what their gateway noted (see `deliveries`) or, where that is not known, what
workers say they published. A close record that comes after all, from an outbox that somebody
adopted, takes the place of what was reconciled, until that has its receipt, ten minutes later (see
`Ledger.apply`).
"""

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.generate_pb2 import CachedTokens
from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import ReconcileResponse, UsageClose, UsageRecord
from pagoda_gateway.accounts.fitted import MAX_INTEGER
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.usage import applier_metrics
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages
from pagoda_gateway.accounts.usage_rows import LOST, RECONCILED
from pagoda_runtime.status import ROLE_NAMES

logger = logging.getLogger(__name__)

_GATEWAY = ROLE_NAMES[Role.ROLE_GATEWAY]
PAGE_ROWS = 500
MIN_GONE_SECONDS = 5.0  # who has just begun to listen hears within a second of all who live
UNBEGUN_SECONDS = 60.0  # both halves of a row come within seconds of each other
_IS_OPEN = sa.and_(USAGE.c.closed_unix_seconds.is_(None), USAGE.c.tenant.is_not(None))


class Reconciler:
    """Knows since when each gateway that left something open has been gone."""

    def __init__(
        self,
        ledger: Ledger,
        sequences: SequenceUsages,
        is_alive: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] | None = None,
    ) -> None:
        """Make one.

        Args:
            ledger: to close requests in.
            sequences: what workers say.
            is_alive: whether a gateway is heard of.
            clock: seconds.
            unix_clock: Unix seconds; None: by the database.
        """
        self._ledger = ledger
        self._sequences = sequences
        self._is_alive = is_alive
        self._clock = clock
        self._unix_clock = unix_clock or ledger.database.now
        self._missed_since: dict[str, float] = {}

    async def run(self, gone_seconds: float) -> ReconcileResponse:
        """Close what gateways left open that were not heard of for so long, 5 s at least, by us.

        All records that were on their way when this is called must be in the ledger.
        """
        result = ReconcileResponse()
        gone_seconds = max(gone_seconds, MIN_GONE_SECONDS)
        for gateway_id, num_open in (await self._open_gateways()).items():
            missed_since = self._missed_since.get(gateway_id)
            if missed_since is None or self._clock() - missed_since < gone_seconds:
                result.num_open += num_open
                continue
            while rows := await self._open_rows(gateway_id):
                outcomes = await self._close(rows)
                result.num_reconciled += outcomes.count(RECONCILED)
                result.num_lost += outcomes.count(LOST)
        await self._ledger.seal_left()
        result.num_unbegun = await self._num_unbegun()
        if result.num_reconciled or result.num_lost:
            logger.warning(
                "closed what dead gateways left open: %d requests from what is known, "
                "%d of which nobody knows anything",
                result.num_reconciled, result.num_lost,
            )  # fmt: skip
        return result

    async def _num_unbegun(self) -> int:
        """Return how many ended a while ago whose beginning is not here, as a copy is restored."""
        statement = sa.select(sa.func.count()).where(
            USAGE.c.tenant.is_(None),
            USAGE.c.closed_unix_seconds < self._unix_clock() - UNBEGUN_SECONDS,
        )
        return await self._ledger.database.call(lambda c: int(c.execute(statement).scalar_one()))

    async def _open_gateways(self) -> dict[str, int]:
        """Return gateways that have something open, with its number; note who is missing."""
        statement = sa.select(USAGE.c.gateway_id, sa.func.count().label("num_open"))
        rows = await self._ledger.database.rows(
            statement.where(_IS_OPEN).group_by(USAGE.c.gateway_id)
        )
        found = {row["gateway_id"]: int(row["num_open"]) for row in rows}
        missing = [gateway_id for gateway_id in found if not self._is_alive(gateway_id)]
        now = self._clock()
        self._missed_since = {name: self._missed_since.get(name, now) for name in missing}
        return found

    async def _open_rows(self, gateway_id: str) -> list[sa.RowMapping]:
        statement = sa.select(USAGE).where(_IS_OPEN, USAGE.c.gateway_id == gateway_id)
        return await self._ledger.database.rows(statement.limit(PAGE_ROWS))

    async def _close(self, rows: Sequence[sa.RowMapping]) -> list[str]:
        found = await self._sequences.of_requests([row["request_id"] for row in rows])
        now = self._unix_clock()
        closes = [close_of(row, found.get(row["request_id"], []), now) for row in rows]
        await self._ledger.apply([UsageRecord(close=close) for close in closes])
        for close in closes:
            applier_metrics.RECONCILED.labels(close.outcome).inc()
        return [close.outcome for close in closes]


def close_of(row: Any, sequences: Sequence[Any], now: float) -> UsageClose:
    """Return the close record that is made of an open request.

    A token counts once, whichever attempts published it. Those before a record's first were
    delivered: a later attempt begins behind them. No worker's word makes it more than the request
    asked for. Where the client had no token, as its gateway
    noted, it pays no prompt either: that failed here.

    Args:
        row: of the open request, as in the table.
        sequences: records of its workers and its gateway, as in their table, in the order of
            attempts.
        now: Unix seconds.
    """
    close = UsageClose(request_id=row["request_id"], closed_unix_seconds=now)
    delivered = {r["sequence_index"]: r["published_tokens"] for r in sequences if _is_gateways(r)}
    workers = [r for r in sequences if not _is_gateways(r)]
    close.outcome = RECONCILED if workers or any(delivered.values()) else LOST
    num_output_tokens, num_attempts = sum(delivered.values()), 0
    for index, group in itertools.groupby(workers, itemgetter("sequence_index")):
        records = list(group)
        if index not in delivered:
            num_output_tokens += max(r["first_index"] + r["published_tokens"] for r in records)
        num_attempts += records[-1]["attempt"] + 1
        close.finish_reasons.append(records[-1]["finish_reason"] or "abort")
        close.worker_ids.extend(
            {r["worker_id"]: None for r in records if r["worker_id"] not in close.worker_ids}
        )
        if index % (row["num_choices"] or 1) == 0:
            first = _prefilled_first(records)
            close.cached.CopyFrom(_added(close.cached, first, row["opened_prompt_tokens"]))
    close.num_output_tokens = min(num_output_tokens, row["max_output_tokens"] or MAX_INTEGER)
    close.num_attempts = min(num_attempts, MAX_INTEGER)
    if close.num_output_tokens or (not delivered and any(map(_has_used_prompt, workers))):
        close.num_prompt_tokens = row["opened_prompt_tokens"]
    else:
        close.ClearField("cached")
    return close


def _is_gateways(record: Any) -> bool:
    return bool(record["role"] == _GATEWAY)


def _has_used_prompt(record: Any) -> bool:
    return bool(record["computed_prompt_tokens"] or record["published_tokens"])


def _prefilled_first(records: Sequence[Any]) -> Any | None:
    """Return the record of who computed the prompt first."""
    return next((r for r in records if r["computed_prompt_tokens"]), None)


def _added(cached: CachedTokens, record: Any | None, num_prompt_tokens: int) -> CachedTokens:
    """Return what was cached with what a record says of it, all in all no more than the prompt."""
    if record is None:
        return cached
    total, num_left = CachedTokens(), num_prompt_tokens
    for tier in ("device", "cpu", "nvme"):
        num_tokens = min(getattr(cached, tier) + record[f"cached_{tier}_tokens"], num_left)
        setattr(total, tier, num_tokens)
        num_left -= num_tokens
    return total
