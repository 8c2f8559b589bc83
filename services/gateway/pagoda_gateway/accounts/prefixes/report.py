"""Misses of all replicas, summed from the ledger by tenant, model, class and place."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.prefixes.kinds import ADVICE
from pagoda_gateway.accounts.tables import USAGE

HOUR_SECONDS = 3600.0


class PrefixReport:
    """Reads misses from the ledger."""

    def __init__(self, database: Database, clock: Callable[[], float] | None = None) -> None:
        self._database = database
        self._clock = clock or database.now

    async def misses(
        self, *, tenant: str | None = None, hours: float = 1.0, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Return the costliest reasons of the last hours, with the latest example of each."""
        return await self._database.call(
            lambda connection: self._read(connection, tenant, hours, limit)
        )

    def _read(
        self, connection: sa.Connection, tenant: str | None, hours: float, limit: int
    ) -> list[dict[str, Any]]:
        columns = USAGE.c
        reason = columns.tenant, columns.model, columns.prefix_class, columns.prefix_place
        lost = sa.func.sum(columns.prefix_lost_tokens)
        statement = (
            sa.select(
                *reason,
                sa.func.count().label("num_requests"),
                lost.label("lost_tokens"),
                sa.func.sum(columns.prefix_lost_micros).label("lost_micros"),
                sa.func.max(columns.request_id).label("request_id"),
            )
            .where(columns.prefix_lost_tokens > 0)
            .where(columns.closed_unix_seconds >= self._clock() - HOUR_SECONDS * hours)
            .group_by(*reason)
            .order_by(lost.desc(), *reason)
            .limit(limit)
        )
        if tenant is not None:
            statement = statement.where(columns.tenant == comparable(tenant))
        rows = list(connection.execute(statement).mappings())
        wanted = sa.select(columns.request_id, columns.prefix).where(
            columns.request_id.in_([row["request_id"] for row in rows])
        )
        examples = {row.request_id: row.prefix for row in connection.execute(wanted)}
        return [_answer(row, examples.get(row["request_id"]) or {}, hours) for row in rows]


def _answer(row: sa.RowMapping, example: dict[str, Any], hours: float) -> dict[str, Any]:
    lost, micros = int(row["lost_tokens"]), row["lost_micros"]
    return {
        "object": "prefix_miss",
        "tenant": row["tenant"],
        "model": row["model"],
        "class": row["prefix_class"],
        "place": row["prefix_place"] or None,
        "role": example.get("role"),
        "requests": row["num_requests"],
        "lost_tokens": lost,
        "lost_tokens_per_hour": round(lost / hours, 1),
        "lost_micros": None if micros is None else int(micros),
        "example": {
            "request_id": row["request_id"],
            "first_token": example.get("first_token"),
            "text": example.get("text", ""),
            "earlier_text": example.get("earlier_text", ""),
        },
        "advice": ADVICE.get(row["prefix_class"], ""),
    }
