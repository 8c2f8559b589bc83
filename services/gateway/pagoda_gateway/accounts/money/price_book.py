"""The prices that a gateway knows, so that no request waits for the database to be priced.

It reads them again when it hears of a change, and once in a while in case it did not hear. What a
request costs is settled all the same: its open record names the price that it came in under.
"""

import asyncio
import bisect
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from operator import attrgetter

from sqlalchemy.exc import SQLAlchemyError

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.accounts.money.price import BATCH_TIER, NO_PRICE, Price, PricedUsage, Tokens
from pagoda_gateway.accounts.usage_rows import FINISHED, LOST

logger = logging.getLogger(__name__)

READ_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0


def names_of(model: str) -> tuple[str, ...]:
    """Return what may have the price of a model's account: its name with its adapter, its own."""
    base = model.rpartition(":")[0]
    return (model, base) if base else (model,)


class PriceBook:
    """Prices by model and time."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        self._by_id: dict[str, Price] = {}
        self._by_model: dict[str, list[Price]] = {}
        self._is_stale = asyncio.Event()
        self.replace(prices)

    def replace(self, prices: Iterable[Price]) -> None:
        """Let these prices be those in force, now or once; others are known by their ids alone."""
        by_time = sorted(prices, key=attrgetter("model", "valid_from_unix_seconds", "price_id"))
        self.remember(by_time)
        self._by_model = {
            model: list(group) for model, group in groupby(by_time, key=attrgetter("model"))
        }

    def remember(self, prices: Iterable[Price]) -> None:
        """Know these prices by their ids."""
        self._by_id |= {price.price_id: price for price in prices}

    def price_at(self, model: str, unix_seconds: float) -> Price | None:
        """Return what a model costs at a moment; None: it has no price."""
        prices = self._by_model.get(model, [])
        index = bisect.bisect_right(prices, unix_seconds, key=attrgetter("valid_from_unix_seconds"))
        return prices[index - 1] if index else None

    def price_id_at(self, model: str, unix_seconds: float) -> str:
        """Return the id of that price; empty if there is none."""
        price = self.price_at(model, unix_seconds)
        return "" if price is None else price.price_id

    def priced_name(self, names: Iterable[str], unix_seconds: float) -> str:
        """Return the first of some names that has a price at a moment, or else the last."""
        name = ""
        for name in names:
            if self.price_at(name, unix_seconds) is not None:
                break
        return name

    def price_of(self, price_id: str | None, model: str, unix_seconds: float) -> Price | None:
        """Return the price of a request that was opened then; None: its model had no price.

        `price_id` is what its open record names: empty for no price, None if it says nothing, as
        those of older gateways. One that nobody knows any more, as the ledger was restored from a
        copy of before, is that of the time: the model's with its adapter, or its own.
        """
        if price_id is None:
            return self.price_at(model, unix_seconds)
        if not price_id or price_id in self._by_id:
            return self._by_id.get(price_id)
        return self.price_at(self.priced_name(names_of(model), unix_seconds), unix_seconds)

    def most_micros(
        self,
        model: str,
        *,
        num_prompt_tokens: int,
        num_output_tokens: int,
        service_tier: str,
        at: float,
    ) -> int:
        """Return what a request that comes in `at` some Unix time costs at most.

        Nothing of its prompt is cached then, and all of its output is written.
        """
        price = self.price_at(model, at)
        if price is None:
            return 0
        tokens = Tokens(num_prompt_tokens, 0, 0, 0, num_output_tokens)
        return price.cost(tokens, service_tier=service_tier).total_micros

    def lost_micros(self, num_tokens: int, model: str, service_tier: str, at: float) -> int | None:
        """Return what input tokens cost more than cached ones; None: the model has no price."""
        price = self.price_at(model, at)
        if price is None:
            return None
        computed, cached = Tokens(num_tokens, 0, 0, 0, 0), Tokens(num_tokens, num_tokens, 0, 0, 0)
        return (
            price.cost(computed, service_tier=service_tier).total_micros
            - price.cost(cached, service_tier=service_tier).total_micros
        )

    def price(self, usage: UsageOpen, close: UsageClose) -> PricedUsage:
        """Return what a request costs that ended so, by the price that it came in under."""
        price_id = usage.price_id if usage.HasField("price_id") else None
        price = self.price_of(price_id, usage.model, usage.opened_unix_seconds)
        if price is None or not is_billed(usage.service_tier, close.outcome):
            return NO_PRICE
        cached = close.cached
        tokens = Tokens(
            close.num_prompt_tokens,
            cached.device,
            cached.cpu,
            cached.nvme,
            close.num_output_tokens,
        )
        return price.cost(
            tokens, service_tier=usage.service_tier, is_cached_answer=close.is_cached_answer
        )

    def on_change(self, change: AccountChange) -> None:
        """Read again soon, if the change is one of prices."""
        if change.priced_model:
            self._is_stale.set()

    async def follow(self, read: Callable[[], Awaitable[Iterable[Price]]]) -> None:
        """Read all prices by `read` whenever they may have changed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await self._is_stale.wait()
            except TimeoutError:
                pass
            self._is_stale.clear()
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    self.replace(await read())
            except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
                logger.warning("prices are those of before, the ledger does not answer: %r", error)


def is_billed(service_tier: str | None, outcome: str) -> bool:
    """Return whether a request that ended so is billed.

    A line of a batch that has not finished runs again, under the same id. Of what is lost nobody
    knows anything; its gateway's own word may yet come.
    """
    return outcome != LOST and (service_tier != BATCH_TIER or outcome == FINISHED)
