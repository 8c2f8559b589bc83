"""What limits know of prices: the most that a request can cost, and what it did cost."""

from typing import Literal, Protocol

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen

ServiceTier = Literal["default", "batch"]


class Priced(Protocol):
    """What a request cost."""

    @property
    def total_micros(self) -> int:
        """Millionths of the unit that prices are in."""


class Prices(Protocol):
    """Who knows prices."""

    def most_micros(
        self,
        model: str,
        *,
        num_prompt_tokens: int,
        num_output_tokens: int,
        service_tier: ServiceTier,
        at: float,
    ) -> int:
        """Return what so many tokens cost at Unix time `at` if nothing is cached."""

    def price(self, usage: UsageOpen, close: UsageClose) -> Priced:
        """Return what a request that has ended costs."""


class NothingPriced:
    """Prices of a system that has none: no budget is ever used up."""

    total_micros = 0

    def most_micros(
        self,
        model: str,
        *,
        num_prompt_tokens: int,
        num_output_tokens: int,
        service_tier: ServiceTier,
        at: float,
    ) -> int:
        """Return 0."""
        return 0

    def price(self, usage: UsageOpen, close: UsageClose) -> Priced:
        """Return what costs nothing."""
        return self
