"""Checks tenants' chains of receipts: what was changed, removed or added breaks them.

A chain begins where retention has cut it, or with number 1, and ends as `RECEIPT_CHAINS` says. It
is checked some receipts at a time, so that a chain of any length keeps nobody waiting.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from pagoda_gateway.accounts.database import Database, comparable
from pagoda_gateway.accounts.money.receipt_text import receipt_hash
from pagoda_gateway.accounts.money.tables import RECEIPT_CHAINS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.tenancy.records import Page, Records
from pagoda_gateway.errors import NotFoundError, shorten


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """What a check of a part of a chain has found.

    Attributes:
        num_checked: receipts that are as they were.
        cost_micros: of these.
        last_number: of the last of these, or what the check began after.
        last_hash: its hash.
        is_end: nothing follows.
        break_: the first thing that is wrong; None: nothing is.
    """

    num_checked: int
    cost_micros: int
    last_number: int
    last_hash: str
    is_end: bool
    break_: str | None


class Chains:
    """Chains in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

        self._records = Records(database, RECEIPT_CHAINS, "chain")

    async def page(self, *, after: str = "", limit: int = 100) -> Page:
        """Return the chains of those who have receipts, or had, by tenant."""
        return await self._records.page(after=after, limit=limit)

    async def check(
        self, tenant: str, *, after: tuple[int, str] | None = None, limit: int
    ) -> ChainCheck:
        """Check at most `limit` receipts, from the beginning or after one: its number and hash.

        Raises:
            NotFoundError: the tenant never had a receipt.
        """
        return await self._database.call(lambda found: _check(found, tenant, after, limit))


def _check(
    connection: sa.Connection, tenant: str, after: tuple[int, str] | None, limit: int
) -> ChainCheck:
    while True:
        chain = _chain(connection, tenant)
        found = _check_from(connection, chain, after, limit)
        # What is missing may have been cut off since the chain was read.
        if found.break_ is None or _chain(connection, tenant)["cut_number"] == chain["cut_number"]:
            return found


def _check_from(
    connection: sa.Connection, chain: sa.RowMapping, after: tuple[int, str] | None, limit: int
) -> ChainCheck:
    cut = chain["cut_number"], chain["cut_hash"]
    # What was checked may be cut off before the next part is.
    number, digest = max(after, cut) if after else cut
    num_checked = cost_micros = 0
    # Receipts beyond the chain's end as it was read just now are those of the next check.
    statement = (
        sa.select(USAGE)
        .where(
            USAGE.c.tenant == chain["tenant"],
            USAGE.c.receipt_number > number,
            USAGE.c.receipt_number <= chain["last_number"],
        )
        .order_by(USAGE.c.receipt_number)
        .limit(limit)
    )
    rows = list(connection.execute(statement).mappings())
    wrong = None
    for row in rows:
        wrong = _wrong(row, number, digest)
        if wrong is not None:
            break
        number, digest = row["receipt_number"], row["receipt_hash"]
        num_checked += 1
        cost_micros += row["cost_micros"]
    is_end = len(rows) < limit or wrong is not None
    if is_end and wrong is None:
        wrong = _wrong_end(connection, chain, number, digest)
    return ChainCheck(num_checked, cost_micros, number, digest, is_end, wrong)


def _chain(connection: sa.Connection, tenant: str) -> sa.RowMapping:
    named = sa.select(RECEIPT_CHAINS).where(RECEIPT_CHAINS.c.tenant == comparable(tenant))
    chain = connection.execute(named).mappings().first()
    if chain is None:
        raise NotFoundError(f"the tenant {shorten(tenant)} has no receipts", param="tenant")
    return chain


def _wrong(row: sa.RowMapping, number: int, digest: str) -> str | None:
    """Return what is wrong with a receipt that should follow the one with that number and hash."""
    found = row["receipt_number"]
    if found != number + 1:
        return f"receipt {number + 1} is missing; the next one is {found}"
    place = f"receipt {found} ({row['request_id']})"
    if row["previous_hash"] != digest:
        return f"{place} does not follow receipt {number}: one of them was put here or changed"
    if receipt_hash(row) != row["receipt_hash"]:
        return f"{place} was changed: its hash is not that of what it says"
    if row["cost_micros"] != sum(line["micros"] for line in row["price_lines"]):
        return f"{place}: its lines do not sum to its cost"
    return None


def _wrong_end(
    connection: sa.Connection, chain: sa.RowMapping, number: int, digest: str
) -> str | None:
    last = chain["last_number"]
    if number < last:
        return f"receipts {number + 1} to {last} are missing"
    if number > last or digest != chain["last_hash"]:
        return f"receipt {number} is not the one that was given out last, {last}"
    beyond = sa.select(sa.func.min(USAGE.c.receipt_number)).where(
        USAGE.c.tenant == chain["tenant"], USAGE.c.receipt_number > last
    )
    found = connection.scalar(beyond)
    # It may have been given out since: then the chain's end has moved by now.
    if found is not None and _chain(connection, chain["tenant"])["last_number"] < found:
        return f"receipt {found} was added: the last that was given out is {last}"
    return None


def as_json(tenant: str, check: ChainCheck) -> dict[str, Any]:
    """Return a check as the administration answers it."""
    return {
        "object": "chain.check",
        "tenant": tenant,
        "checked": check.num_checked,
        "cost_micros": check.cost_micros,
        "last_number": check.last_number,
        "last_hash": check.last_hash,
        "is_end": check.is_end,
        "break": check.break_,
    }
