"""Rows are priced, numbered and chained once, whatever is applied again and by whom."""

import asyncio
import random

import pytest
import sqlalchemy as sa
from support.prices import Rows, SetPrice
from support.usage_records import both, closed, opened

from pagoda_gateway.accounts.ledger import Ledger, open_ledger
from pagoda_gateway.accounts.money.chains import Chains
from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.accounts.money.prices import Prices
from pagoda_gateway.accounts.money.receipt_text import FIRST_PREVIOUS_HASH
from pagoda_gateway.accounts.money.tables import USAGE_DAYS
from pagoda_gateway.accounts.tables import USAGE

COST = 4 + 1 + 9  # 4 computed tokens, 4 of the device (0.4) and 2 of nvme (1.0), 3 of output


async def test_a_row_gets_its_price_when_it_is_whole(
    ledger: Ledger, set_price: SetPrice, rows: Rows
) -> None:
    price_id = await set_price()
    await ledger.apply([closed("r")])
    assert (await rows())["r"]["receipt_number"] is None
    await ledger.apply([opened("r")])
    row = (await rows())["r"]
    assert (row["price_id"], row["cost_micros"], row["receipt_number"]) == (price_id, COST, 1)
    assert sum(line["micros"] for line in row["price_lines"]) == COST
    assert row["previous_hash"] == FIRST_PREVIOUS_HASH


async def test_the_price_is_that_of_the_moment_the_request_was_opened(
    ledger: Ledger, set_price: SetPrice, rows: Rows
) -> None:
    first = await set_price()
    await ledger.apply([*both("before"), opened("between", opened_unix_seconds=8.0)])
    sealed = (await rows())["before"]
    second = await set_price(valid_from=9.0, output_micros=30_000_000)
    await ledger.apply([closed("between"), *both("after", opened_unix_seconds=10.0)])
    found = await rows()
    assert {name: row["price_id"] for name, row in found.items()} == {
        "before": first, "between": first, "after": second,
    }  # fmt: skip
    assert found["before"] == sealed
    assert (found["between"]["cost_micros"], found["after"]["cost_micros"]) == (COST, COST + 81)


async def test_a_price_that_the_open_record_names_counts_even_if_it_was_withdrawn(
    ledger: Ledger, prices: Prices, set_price: SetPrice, rows: Rows
) -> None:
    later = await set_price(valid_from=100.0)
    await prices.withdraw(later)
    await ledger.apply(both("r", price_id=later))
    assert (await rows())["r"]["cost_micros"] == COST


async def test_a_price_that_the_ledger_has_lost_is_that_of_the_time(
    ledger: Ledger,
    prices: Prices,
    set_price: SetPrice,
    rows: Rows,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was restored from a copy of before, and nothing that came since is to cost nothing."""
    first = await set_price()
    await set_price(valid_from=9.0, output_micros=30_000_000)
    await ledger.apply(both("r", price_id="price_lost"))
    await ledger.apply(both("free", price_id=""))
    await ledger.apply(both("tuned", model="m:style", price_id="price_lost"))
    found = await rows()
    for name in ("r", "tuned"):
        assert (found[name]["price_id"], found[name]["cost_micros"]) == (first, COST)
    assert (found["free"]["price_id"], found["free"]["cost_micros"]) == ("", 0)
    assert "the ledger has no prices ['price_lost']" in caplog.text
    begin, end = both("r", price_id="price_lost")
    priced = PriceBook(await prices.all()).price(begin.open, end.close)  # as gateways say it
    assert (priced.price_id, priced.total_micros) == (first, COST)


@pytest.mark.parametrize("price_id", [None, ""])
async def test_no_price_costs_nothing(ledger: Ledger, rows: Rows, price_id: str | None) -> None:
    named = {} if price_id is None else {"price_id": price_id}
    await ledger.apply(both("r", **named))
    row = (await rows())["r"]
    assert (row["cost_micros"], row["price_lines"], row["price_id"]) == (0, [], "")
    assert row["receipt_number"] == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_replaying_all_records_twice_out_of_order_changes_nothing(
    ledger: Ledger, set_price: SetPrice, rows: Rows, seed: int
) -> None:
    await set_price()
    draws = random.Random(seed)
    records = [r for i in range(40) for r in both(f"r{i:02}", tenant=f"t{i % 3}")]
    await ledger.apply(records)
    before, days = await rows(), await ledger.database.rows(sa.select(USAGE_DAYS))
    for _ in range(2):
        draws.shuffle(records)
        for start in range(0, len(records), 7):
            await ledger.apply(records[start : start + 7])
    assert await rows() == before
    assert await ledger.database.rows(sa.select(USAGE_DAYS)) == days
    assert sum(row["cost_micros"] for row in days) == 40 * COST


async def test_a_line_of_a_batch_is_billed_once_it_has_finished(
    ledger: Ledger, set_price: SetPrice, rows: Rows
) -> None:
    await set_price()
    await ledger.apply([opened("line", service_tier="batch"), closed("line", 1, "failed")])
    failed = (await rows())["line"]
    assert (failed["cost_micros"], failed["receipt_number"]) == (None, None)
    await ledger.apply([closed("line", 3), closed("line", 9, "failed"), closed("line", 8)])
    finished = (await rows())["line"]
    assert (finished["output_tokens"], finished["receipt_number"]) == (3, 1)
    assert finished["cost_micros"] == 7  # half of 14.4 is 7.2
    assert finished["price_lines"][-1] == {"item": "batch_discount", "percent": 50, "micros": -7}


async def test_a_sealed_row_stays_as_it_is(ledger: Ledger, set_price: SetPrice, rows: Rows) -> None:
    await set_price()
    await ledger.apply([opened("r"), closed("r", 3, "failed")])
    before = await rows()
    await ledger.apply([closed("r", 5)])
    assert await rows() == before
    assert before["r"]["cost_micros"] == COST


@pytest.mark.parametrize("seed", [1, 2])
async def test_replicas_that_apply_at_once_make_one_chain_of_each_tenant(
    url: str, seed: int
) -> None:
    draws = random.Random(seed)
    records = [r for i in range(120) for r in both(f"r{i:03}", tenant=f"t{i % 5}")]
    async with open_ledger(url) as first, open_ledger(url) as second:
        async with asyncio.TaskGroup() as tasks:
            for ledger in (first, second):
                shuffled = draws.sample(records, len(records))
                for start in range(0, len(shuffled), 31):
                    tasks.create_task(ledger.apply(shuffled[start : start + 31]))
        for tenant in range(5):
            check = await Chains(first.database).check(f"t{tenant}", limit=1000)
            assert (check.break_, check.num_checked) == (None, 24)
        open_rows = sa.select(sa.func.count()).where(USAGE.c.receipt_number.is_(None))
        assert await first.database.scalar(open_rows) == 0
        requests = await first.database.scalar(sa.select(sa.func.sum(USAGE_DAYS.c.requests)))
        assert requests == 120


async def test_what_was_stored_but_not_sealed_when_a_gateway_died_is_sealed_when_it_comes_again(
    ledger: Ledger, set_price: SetPrice, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are acknowledged after all steps: those of a gateway that died come again."""
    await set_price()

    def die(connection: sa.Connection, request_ids: list[str], *, now: float) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._sealer, "seal", die)
        with pytest.raises(RuntimeError):
            await ledger.apply(both("r"))
    await ledger.apply(both("r"))
    row = (await rows())["r"]
    assert (row["cost_micros"], row["receipt_number"]) == (COST, 1)


async def test_what_came_once_and_was_not_sealed_then_is_sealed_later(
    ledger: Ledger, set_price: SetPrice, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_price()
    with monkeypatch.context() as patch:
        patch.setattr(ledger._sealer, "seal", lambda *arguments, **named: None)
        await ledger.apply(both("r"))
    assert (await rows())["r"]["receipt_number"] is None
    await ledger.seal_left()
    row = (await rows())["r"]
    assert (row["cost_micros"], row["receipt_number"]) == (COST, 1)
