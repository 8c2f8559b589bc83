"""Seals rows of usage: gives each, once, its price, its number in the tenant's chain, and its hash.

A row is sealed when both its halves are there and nothing can change them any more. All of it is
in the transaction of whoever applies records; a tenant's chain is locked by its row meanwhile.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson
import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.money.price import BATCH_TIER, NO_PRICE, PricedUsage, Tokens
from pagoda_gateway.accounts.money.price_book import PriceBook, names_of
from pagoda_gateway.accounts.money.prices import prices_of_models, prices_with_ids
from pagoda_gateway.accounts.money.receipt_text import FIRST_PREVIOUS_HASH, receipt_hash
from pagoda_gateway.accounts.money.tables import RECEIPT_CHAINS, USAGE_DAYS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.usage_rows import FINISHED, LOST, RECONCILED

logger = logging.getLogger(__name__)

DAY_SECONDS = 86_400
RECONCILED_SECONDS = 600.0  # the gateway's own close record may come so long after
_LEFT_SECONDS = 60.0  # whoever applies records has sealed them by then, or failed to
_PAGE_ROWS = 500

_SEALED_COLUMNS = (
    "price_id", "cost_micros", "price_lines", "receipt_number", "previous_hash", "receipt_hash",
)  # fmt: skip
_READ = sa.select(
    *(
        USAGE.c[name]
        for name in (
            "request_id", "tenant", "api_key_id", "model", "endpoint", "service_tier",
            "opened_unix_seconds", "closed_unix_seconds", "outcome", "prompt_tokens",
            "cached_device_tokens", "cached_cpu_tokens", "cached_nvme_tokens", "output_tokens",
            "attempts", "price_id", "is_cached_answer",
        )
    )
)  # fmt: skip
_CAN_BE_SEALED = sa.and_(
    USAGE.c.receipt_number.is_(None),
    USAGE.c.tenant.is_not(None),
    USAGE.c.closed_unix_seconds.is_not(None),
    # What is lost may be found, a line of a batch may finish yet: see `price_book.is_billed`.
    USAGE.c.outcome != LOST,
    # What workers' records closed waits for the gateway's own word, but not for ever.
    sa.or_(
        USAGE.c.outcome != RECONCILED,
        USAGE.c.closed_unix_seconds < sa.bindparam("reconciled_before"),
    ),
    sa.or_(
        USAGE.c.service_tier.is_(None),
        USAGE.c.service_tier != BATCH_TIER,
        USAGE.c.outcome == FINISHED,
    ),
)
# Rows first, then chains, both in order: so replicas that seal never wait in a circle. Whoever
# applies records locks rows in the same order, and then no chain.
_ROWS = (
    _READ.where(USAGE.c.request_id.in_(sa.bindparam("request_ids", expanding=True)), _CAN_BE_SEALED)
    .order_by(USAGE.c.request_id)
    .with_for_update()
)
_LEFT = (
    sa.select(USAGE.c.request_id)
    .where(_CAN_BE_SEALED, USAGE.c.closed_unix_seconds < sa.bindparam("left_before"))
    .order_by(USAGE.c.request_id)
    .limit(_PAGE_ROWS)
)
_CHAINS = (
    sa.select(RECEIPT_CHAINS)
    .where(RECEIPT_CHAINS.c.tenant.in_(sa.bindparam("tenants", expanding=True)))
    .order_by(RECEIPT_CHAINS.c.tenant)
    .with_for_update()
)
# Written out: what SQLAlchemy does for each of many updates takes as long as SQLite does.
_SEAL = (
    "UPDATE usage SET " + ", ".join(f"{name} = ?" for name in _SEALED_COLUMNS)
    + " WHERE request_id = ?"
)  # fmt: skip
# The same in one statement: PostgreSQL is in another process, and each statement is a trip there.
_SEAL_IN_POSTGRESQL = sa.text(
    "UPDATE usage SET "
    + ", ".join(f"{name} = sealed.{name}" for name in _SEALED_COLUMNS)
    + " FROM json_to_recordset(CAST(:rows AS json)) AS sealed (request_id text, price_id text, "
    "cost_micros bigint, price_lines json, receipt_number bigint, previous_hash text, "
    "receipt_hash text) WHERE usage.request_id = sealed.request_id"
)
_MOVE_CHAIN = (
    sa.update(RECEIPT_CHAINS)
    .where(RECEIPT_CHAINS.c.tenant == sa.bindparam("chain_tenant"))
    .values(last_number=sa.bindparam("number"), last_hash=sa.bindparam("hash"))
)


@dataclass(slots=True)
class _Sums:
    """What a day's requests used, of one key and model; the columns of `USAGE_DAYS`."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0


SUM_NAMES = tuple(field.name for field in fields(_Sums))


class Sealer:
    """Seals in any transaction of one database."""

    def __init__(self, database: Database) -> None:
        self._is_postgresql = database.is_postgresql
        new_chain = database.insert(RECEIPT_CHAINS)
        self._new_chain = new_chain.on_conflict_do_nothing()
        add = database.insert(USAGE_DAYS)
        self._add_to_day = add.on_conflict_do_update(
            index_elements=["tenant", "day", "api_key_id", "model"],
            set_={name: USAGE_DAYS.c[name] + add.excluded[name] for name in SUM_NAMES},
        )

    def seal_left(self, connection: sa.Connection, now: float) -> int:
        """Seal some that were left: reconciled long enough ago, or not sealed when applied.

        Returns:
            How many rows were looked at: 0, there are no more.
        """
        request_ids = connection.scalars(_LEFT, {
            "left_before": now - _LEFT_SECONDS, "reconciled_before": now - RECONCILED_SECONDS,
        }).all()  # fmt: skip
        self.seal(connection, request_ids, now=now)
        return len(request_ids)

    def seal(self, connection: sa.Connection, request_ids: Sequence[str], *, now: float) -> None:
        """Seal those of these rows that can be and are not; all others stay as they are."""
        found = connection.execute(
            _ROWS,
            {"request_ids": request_ids, "reconciled_before": now - RECONCILED_SECONDS},
        )
        names = tuple(found.keys())
        rows = [dict(zip(names, row, strict=True)) for row in found]
        if not rows:
            return
        tenants = sorted({row["tenant"] for row in rows})
        connection.execute(
            self._new_chain,
            [
                {
                    "tenant": tenant,
                    "last_number": 0,
                    "last_hash": FIRST_PREVIOUS_HASH,
                    "cut_number": 0,
                    "cut_hash": FIRST_PREVIOUS_HASH,
                }
                for tenant in tenants
            ],
        )
        chains = connection.execute(_CHAINS, {"tenants": tenants}).mappings()
        ends = {row["tenant"]: (row["last_number"], row["last_hash"]) for row in chains}
        rows.sort(key=lambda row: (row["closed_unix_seconds"], row["request_id"]))
        days = self._number(rows, _prices_for(connection, rows), ends)
        self._write(connection, rows)
        connection.execute(
            _MOVE_CHAIN,
            [
                {"chain_tenant": tenant, "number": number, "hash": digest}
                for tenant, (number, digest) in ends.items()
            ],
        )
        connection.execute(self._add_to_day, days)

    def _write(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        if self._is_postgresql:
            names = ("request_id", *_SEALED_COLUMNS)
            sealed = orjson.dumps([{name: row[name] for name in names} for row in rows])
            connection.execute(_SEAL_IN_POSTGRESQL, {"rows": sealed.decode()})
            return
        connection.exec_driver_sql(
            _SEAL,
            [
                (
                    row["price_id"],
                    row["cost_micros"],
                    orjson.dumps(row["price_lines"]).decode(),
                    row["receipt_number"],
                    row["previous_hash"],
                    row["receipt_hash"],
                    row["request_id"],
                )
                for row in rows
            ],
        )

    def _number(
        self, rows: list[dict[str, Any]], book: PriceBook, ends: dict[str, tuple[int, str]]
    ) -> list[dict[str, Any]]:
        """Fill in what seals each row, move the ends of chains on; return what it adds to days."""
        days: defaultdict[tuple[str, int, str, str], _Sums] = defaultdict(_Sums)
        for row in rows:
            tokens, priced = _price(row, book)
            last_number, last_hash = ends[row["tenant"]]
            row |= {
                "price_id": priced.price_id,
                "cost_micros": priced.total_micros,
                "price_lines": [line.as_json() for line in priced.lines],
                "receipt_number": last_number + 1,
                "previous_hash": last_hash,
            }
            row["receipt_hash"] = receipt_hash(row)
            ends[row["tenant"]] = row["receipt_number"], row["receipt_hash"]
            day = int(row["opened_unix_seconds"] // DAY_SECONDS)
            sums = days[row["tenant"], day, row["api_key_id"], row["model"]]
            sums.requests += 1
            sums.prompt_tokens += tokens.num_prompt
            sums.cached_tokens += tokens.num_cached
            sums.output_tokens += tokens.num_output
            sums.cost_micros += priced.total_micros
        return [
            {"tenant": tenant, "day": day, "api_key_id": key, "model": model}
            | {name: getattr(sums, name) for name in SUM_NAMES}
            for (tenant, day, key, model), sums in days.items()
        ]


def _prices_for(connection: sa.Connection, rows: list[dict[str, Any]]) -> PriceBook:
    """Return the prices that rows name, and those of models of rows that name none of ours."""
    ids = {row["price_id"] for row in rows if row["price_id"]}
    named = prices_with_ids(connection, ids) if ids else []
    unknown = ids - {price.price_id for price in named}
    models = {  # of older gateways, or of a ledger that was restored since
        name
        for row in rows
        if row["price_id"] is None or row["price_id"] in unknown
        for name in names_of(row["model"])
    }
    book = PriceBook(prices_of_models(connection, models) if models else [])
    book.remember(named)
    if unknown:
        logger.error(
            "the ledger has no prices %s, which requests came in under: they cost what it says of "
            "their models at that time; was it restored from a copy?",
            sorted(unknown),
        )
    return book


def _price(row: dict[str, Any], book: PriceBook) -> tuple[Tokens, PricedUsage]:
    tokens = Tokens(
        row["prompt_tokens"],
        row["cached_device_tokens"],
        row["cached_cpu_tokens"],
        row["cached_nvme_tokens"],
        row["output_tokens"],
    )
    price = book.price_of(row["price_id"], row["model"], row["opened_unix_seconds"])
    if price is None:
        return tokens, NO_PRICE
    return tokens, price.cost(
        tokens,
        service_tier=row["service_tier"] or "",
        is_cached_answer=bool(row["is_cached_answer"]),
    )
