"""What workers say that sequences used, and gateways that were killed: each one's latest record.

While an attempt runs its worker says each second how far it is; what it says at its end is final.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.fitted import content_told_apart, fitted
from pagoda_gateway.accounts.usage.tables import SEQUENCE_USAGE
from pagoda_runtime.status import ROLE_NAMES

_CHANGING = (
    "published_tokens", "computed_prompt_tokens", "compute_ns", "cached_device_tokens",
    "cached_cpu_tokens", "cached_nvme_tokens", "ended_unix_seconds", "finish_reason", "first_index",
)  # fmt: skip


class SequenceUsages:
    """Records of sequences."""

    def __init__(self, database: Database) -> None:
        self._database = database
        insert = database.insert(SEQUENCE_USAGE)
        old, new = SEQUENCE_USAGE.c, insert.excluded
        # Records may come again, and in any order.
        is_later = sa.or_(
            new.ended_unix_seconds > 0,
            new.published_tokens > old.published_tokens,
        )
        self._upsert = insert.on_conflict_do_update(
            index_elements=["request_id", "record_id"],
            set_={name: new[name] for name in _CHANGING},
            where=sa.and_(old.ended_unix_seconds == 0, is_later),
        )

    async def apply(self, records: Iterable[SequenceUsage]) -> None:
        """Write records; each counts once, however often and in whatever order they come.

        Raises:
            ContentError: a record says what the database does not take.
            Exception: what the database raises, for reasons of its own.
        """
        # In one order, so that appliers do not wait for each other in a circle.
        rows = sorted(map(_values, records), key=lambda row: str(row["record_id"]))
        if rows:
            with content_told_apart():
                await self._database.call(lambda connection: connection.execute(self._upsert, rows))

    async def of_requests(self, request_ids: Collection[str]) -> dict[str, list[sa.RowMapping]]:
        """Return the records of each request that has any, in the order of attempts."""
        table = SEQUENCE_USAGE.c
        statement = (
            sa.select(SEQUENCE_USAGE)
            .where(table.request_id.in_(request_ids))
            .order_by(table.sequence_index, table.attempt, table.first_index)
        )
        found: defaultdict[str, list[sa.RowMapping]] = defaultdict(list)
        for row in await self._database.rows(statement):
            found[row["request_id"]].append(row)
        return found

    async def compute_seconds(self, request_id: str) -> float | None:
        """Return how long engines computed for a request, all attempts; None: not known (yet)."""
        table = SEQUENCE_USAGE.c
        nanoseconds = await self._database.scalar(
            sa.select(sa.func.sum(table.compute_ns)).where(
                table.request_id == request_id,
                table.ended_unix_seconds > 0,
                table.role != ROLE_NAMES[Role.ROLE_GATEWAY],
            )
        )
        return None if nanoseconds is None else int(nanoseconds) / 1e9


def _values(record: SequenceUsage) -> dict[str, Any]:
    values = {
        "request_id": record.request_id,
        "record_id": record.record_id,
        "sequence_index": record.sequence_index,
        "attempt": record.attempt,
        "worker_id": record.worker_id,
        "role": ROLE_NAMES.get(record.role, ""),
        "first_index": record.first_index,
        "published_tokens": record.num_published_tokens,
        "computed_prompt_tokens": record.num_computed_prompt_tokens,
        "compute_ns": record.compute_ns,
        "cached_device_tokens": record.cached.device,
        "cached_cpu_tokens": record.cached.cpu,
        "cached_nvme_tokens": record.cached.nvme,
        "ended_unix_seconds": record.ended_unix_seconds,
        "finish_reason": record.finish_reason,
    }
    return fitted(SEQUENCE_USAGE, values)
