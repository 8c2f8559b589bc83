"""Whoever changes, removes or adds a receipt breaks its tenant's chain; a check says where."""

import random
from typing import Any

import pytest
import sqlalchemy as sa
from support.prices import Rows, SetPrice
from support.usage_records import both, closed, opened

from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.chains import ChainCheck, Chains
from pagoda_gateway.accounts.money.receipt_text import receipt_hash
from pagoda_gateway.accounts.money.tables import RECEIPT_CHAINS
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.errors import NotFoundError

NUM_RECEIPTS = 12


async def whole_check(ledger: Ledger, tenant: str = "t", limit: int = 5) -> ChainCheck:
    """Check part by part, as `pagoda ledger verify` does."""
    chains, after, num_checked = Chains(ledger.database), None, 0
    while True:
        check = await chains.check(tenant, after=after, limit=limit)
        num_checked += check.num_checked
        if check.is_end:
            return ChainCheck(
                num_checked, check.cost_micros, check.last_number, check.last_hash, True,
                check.break_,
            )  # fmt: skip
        after = check.last_number, check.last_hash


async def change(ledger: Ledger, statement: Any) -> None:
    await ledger.database.call(lambda connection: connection.execute(statement))


@pytest.fixture
async def chain(ledger: Ledger, set_price: SetPrice) -> Ledger:
    await set_price()
    for number in range(1, NUM_RECEIPTS + 1):
        await ledger.apply(both(f"r{number:02}"))
    return ledger


def row(number: int) -> sa.ColumnElement[bool]:
    return USAGE.c.request_id == f"r{number:02}"


@pytest.mark.parametrize("limit", [1, 4, 5, 12, 100])
async def test_a_chain_that_nobody_touched_is_whole(chain: Ledger, limit: int) -> None:
    check = await whole_check(chain, limit=limit)
    assert (check.break_, check.num_checked, check.last_number) == (None, 12, 12)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("output_tokens", 4),
        ("cached_nvme_tokens", 0),
        ("cost_micros", 0),
        ("price_lines", []),
        ("price_id", ""),
        ("api_key_id", "key-2"),
        ("opened_unix_seconds", 5.5),
        ("outcome", "failed"),
        ("service_tier", "batch"),
        ("receipt_hash", "0" * 64),
    ],
)
async def test_a_changed_receipt_is_found(chain: Ledger, column: str, value: Any) -> None:
    await change(chain, sa.update(USAGE).where(row(7)).values({column: value}))
    check = await whole_check(chain)
    assert check.num_checked == 6
    assert "receipt 7 (r07)" in str(check.break_)


async def test_a_receipt_that_was_changed_with_its_hash_breaks_the_next(
    chain: Ledger, rows: Rows
) -> None:
    forged = (await rows())["r07"] | {"output_tokens": 1}
    values = {"output_tokens": 1, "receipt_hash": receipt_hash(forged)}
    await change(chain, sa.update(USAGE).where(row(7)).values(values))
    assert "receipt 8 (r08) does not follow receipt 7" in str((await whole_check(chain)).break_)


@pytest.mark.parametrize("number", [1, 7, 12])
async def test_a_removed_receipt_is_found(chain: Ledger, number: int) -> None:
    await change(chain, sa.delete(USAGE).where(row(number)))
    check = await whole_check(chain)
    assert check.num_checked == number - 1
    assert f"{number}" in str(check.break_)
    assert "missing" in str(check.break_)


@pytest.mark.parametrize("place", [7, 13])
async def test_an_added_receipt_is_found(chain: Ledger, rows: Rows, place: int) -> None:
    """In the middle, those behind it moved on; or at the end."""
    columns = USAGE.c
    for number in range(NUM_RECEIPTS, place - 1, -1):
        moved = sa.update(USAGE).where(columns.receipt_number == number)
        await change(chain, moved.values(receipt_number=number + 1))
    added = (await rows())["r03"] | {"request_id": "added", "receipt_number": place}
    await change(chain, sa.insert(USAGE).values(added))
    check = await whole_check(chain)
    assert check.num_checked == place - 1
    assert f"receipt {place}" in str(check.break_)


async def test_a_chain_whose_end_was_moved_is_found(chain: Ledger) -> None:
    await change(chain, sa.delete(USAGE).where(row(12)))
    await change(chain, sa.update(RECEIPT_CHAINS).values(last_number=11))
    assert "is not the one that was given out last" in str((await whole_check(chain)).break_)


@pytest.mark.parametrize("seed", range(3))
async def test_any_random_change_is_found(chain: Ledger, rows: Rows, seed: int) -> None:
    draws = random.Random(seed)
    number = draws.randint(1, NUM_RECEIPTS)
    found = (await rows())[f"r{number:02}"]
    column = draws.choice(["output_tokens", "prompt_tokens", "attempts", "cost_micros"])
    value = found[column] + draws.choice([-1, 1, 1000])
    await change(chain, sa.update(USAGE).where(row(number)).values({column: value}))
    check = await whole_check(chain, limit=draws.randint(1, 13))
    assert check.num_checked == number - 1, (seed, column, value)


async def test_receipts_that_come_between_two_parts_belong_to_the_next(chain: Ledger) -> None:
    chains = Chains(chain.database)
    first = await chains.check("t", limit=NUM_RECEIPTS)
    await chain.apply([opened("late"), closed("late")])
    rest = await chains.check("t", after=(first.last_number, first.last_hash), limit=5)
    assert (rest.break_, rest.num_checked, rest.last_number, rest.is_end) == (None, 1, 13, True)


async def test_a_tenant_without_receipts_has_no_chain(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="'nobody' has no receipts"):
        await whole_check(ledger, "nobody")
