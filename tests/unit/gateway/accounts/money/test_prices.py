"""Prices are set, withdrawn before they begin, and never changed."""

import pytest
from support.clocks import Now
from support.prices import RATES, SetPrice

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.money.prices import Prices
from pagoda_gateway.errors import ConflictError, InvalidRequestError, NotFoundError


async def test_a_price_begins_now_or_later(prices: Prices, set_price: SetPrice, now: Now) -> None:
    first = await set_price()
    later = await set_price(valid_from=now.seconds + 100, output_micros=5)
    assert {price.price_id for price in await prices.all()} == {first, later}
    with pytest.raises(InvalidRequestError, match="has passed"):
        await set_price(valid_from=now.seconds - 1)


async def test_two_prices_of_a_model_do_not_begin_at_once(set_price: SetPrice) -> None:
    await set_price()
    with pytest.raises(ConflictError, match="begins at that moment"):
        await set_price()
    await set_price("another")


async def test_a_cached_token_costs_no_more_than_a_computed_one(set_price: SetPrice) -> None:
    with pytest.raises(InvalidRequestError, match="'cached_cpu_micros' is 1000001"):
        await set_price(cached_cpu_micros=1_000_001)


async def test_only_what_has_not_begun_can_be_withdrawn(
    prices: Prices, set_price: SetPrice, now: Now
) -> None:
    begun = await set_price()
    later = await set_price(valid_from=now.seconds + 100)
    for _ in range(2):
        assert (await prices.withdraw(later))["withdrawn_unix_seconds"] == now.seconds
    assert [price.price_id for price in await prices.all()] == [begun]
    assert [row["price_id"] for row in (await prices.page(model="m")).rows] == [begun]
    assert (await prices.page(model="m\0")).rows == []
    with pytest.raises(ConflictError, match="has begun"):
        await prices.withdraw(begun)
    with pytest.raises(NotFoundError):
        await prices.withdraw("price-none")
    await set_price(valid_from=now.seconds + 100)  # that moment is free again


async def test_other_gateways_hear_of_it(
    prices: Prices, set_price: SetPrice, announced: list[AccountChange], now: Now
) -> None:
    await prices.withdraw(await set_price(valid_from=now.seconds + 1))
    assert announced == [AccountChange(priced_model="m")] * 2


async def test_rates_come_back_as_they_were_set(prices: Prices, set_price: SetPrice) -> None:
    row = await prices.records.get(await set_price(output_micros=10**12))
    assert {name: row[name] for name in RATES} == RATES | {"output_micros": 10**12}
