"""The prices that a gateway knows."""

import asyncio
import random

import pytest
from support.usage_records import closed, opened

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.money import price_book
from pagoda_gateway.accounts.money.price import Price
from pagoda_gateway.accounts.money.price_book import PriceBook


def price(price_id: str, valid_from: float, output_micros: int = 1_000_000) -> Price:
    return Price(price_id, "m", valid_from, 1_000_000, 500_000, 500_000, 0, output_micros, 50)


BOOK = PriceBook([price("second", 20.0), price("first", 10.0)])


@pytest.mark.parametrize(
    ("at", "expected"),
    [(9.9, ""), (10.0, "first"), (19.9, "first"), (20.0, "second"), (1e9, "second")],
)
def test_a_price_is_valid_until_the_next_begins(at: float, expected: str) -> None:
    assert BOOK.price_id_at("m", at) == expected
    assert BOOK.price_id_at("other", at) == ""


def test_a_request_is_priced_by_what_it_came_in_under() -> None:
    close = closed("r", 7, cached=(0, 0, 0)).close
    late = opened("r", price_id="first", opened_unix_seconds=30.0).open
    assert BOOK.price(late, close).price_id == "first"
    free = opened("r", price_id="", opened_unix_seconds=30.0).open
    assert BOOK.price(free, close).total_micros == 0
    of_an_older_gateway = opened("r", opened_unix_seconds=30.0).open
    assert BOOK.price(of_an_older_gateway, close).price_id == "second"


def test_prices_that_were_replaced_are_known_by_their_id() -> None:
    book = PriceBook([price("gone", 10.0)])
    book.replace([])
    assert book.price_id_at("m", 11.0) == ""
    usage = opened("r", price_id="gone").open
    assert book.price(usage, closed("r").close).price_id == "gone"


@pytest.mark.parametrize("outcome", ["failed", "disconnected"])
def test_a_line_of_a_batch_is_free_until_it_has_finished(outcome: str) -> None:
    line = opened("r", price_id="first", service_tier="batch").open
    assert BOOK.price(line, closed("r", outcome=outcome).close).total_micros == 0
    assert BOOK.price(line, closed("r").close).total_micros > 0
    request = opened("r", price_id="first").open
    assert BOOK.price(request, closed("r", outcome=outcome).close).total_micros > 0


@pytest.mark.parametrize("seed", range(4))
def test_no_request_costs_more_than_was_said_beforehand(seed: int) -> None:
    draws = random.Random(seed)
    for _ in range(200):
        num_prompt, most_output = draws.randint(0, 10_000), draws.randint(0, 5_000)
        service_tier = draws.choice(["default", "batch"])
        at = draws.uniform(0, 40)
        usage = opened("r", price_id=BOOK.price_id_at("m", at), service_tier=service_tier).open
        cached = draws.randint(0, num_prompt)
        close = closed(
            "r", draws.randint(0, most_output), cached=(cached, 0, 0), num_prompt_tokens=num_prompt
        ).close
        most = BOOK.most_micros(
            "m",
            num_prompt_tokens=num_prompt,
            num_output_tokens=most_output,
            service_tier=service_tier,
            at=at,
        )
        assert BOOK.price(usage, close).total_micros <= most


def test_an_answer_that_was_kept_costs_nothing_in_a_line_of_its_own() -> None:
    close = closed("r", 7, cached=(0, 0, 0)).close
    close.is_cached_answer = True
    priced = BOOK.price(opened("r", opened_unix_seconds=10.0).open, close)
    assert (priced.price_id, priced.total_micros) == ("first", 0)
    (line,) = priced.lines
    assert (line.item, line.tokens) == ("cached_answer", close.num_prompt_tokens + 7)


def test_tokens_computed_in_vain_cost_what_cached_ones_cost_less() -> None:
    assert BOOK.lost_micros(100, "m", "default", 10.0) == 50
    assert BOOK.lost_micros(100, "m", "batch", 10.0) == 25
    assert BOOK.lost_micros(100, "other", "default", 10.0) is None


async def test_news_make_it_read_again_at_once_and_failures_keep_what_it_knew() -> None:
    book, is_read = PriceBook(), asyncio.Event()
    found: list[list[Price] | OSError] = [OSError("gone"), [price("new", 0.0)]]

    async def read() -> list[Price]:
        is_read.set()
        answer = found.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    following = asyncio.create_task(book.follow(read))
    async with asyncio.timeout(60):
        for expected in ("", "new"):
            is_read.clear()
            book.on_change(AccountChange(tenant="t"))  # no news of prices
            book.on_change(AccountChange(priced_model="m"))
            await is_read.wait()
            await asyncio.sleep(0)
            assert book.price_id_at("m", 1.0) == expected
    following.cancel()
    await asyncio.wait([following])


async def test_what_nobody_told_it_is_read_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(price_book, "READ_SECONDS", 0.001)
    book, is_read = PriceBook(), asyncio.Event()

    async def read() -> list[Price]:
        is_read.set()
        return [price("new", 0.0)]

    following = asyncio.create_task(book.follow(read))
    async with asyncio.timeout(60):
        await is_read.wait()
        await asyncio.sleep(0)
    assert book.price_id_at("m", 1.0) == "new"
    following.cancel()
    await asyncio.wait([following])
