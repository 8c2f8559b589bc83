"""A price, and what some tokens cost by it: exact, in integers.

A part's exact cost is tokens times micros for a million tokens. Only their running sum is rounded,
half up, to whole micros; a line is what the sum has grown by. So lines sum to the total, each is
within a micro of its exact cost, and the total is within half of one.
"""

from dataclasses import dataclass
from typing import Any

CACHE_TIERS = ("device", "cpu", "nvme")
BATCH_TIER = "batch"  # the service tier that has a discount
_PARTS = 1_000_000 * 100  # of a micro: prices are for a million tokens, discounts in percent


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a request used; tokens of the prompt that were cached are by tier."""

    num_prompt: int
    num_cached_device: int
    num_cached_cpu: int
    num_cached_nvme: int
    num_output: int

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt that were cached, wherever."""
        return self.num_cached_device + self.num_cached_cpu + self.num_cached_nvme


@dataclass(frozen=True, slots=True)
class PriceLine:
    """One line of a receipt.

    Attributes:
        item: input | cached_device | cached_cpu | cached_nvme | output | batch_discount |
            cached_answer.
        micros: what the line adds; a discount is negative.
        tokens, micros_per_million: of these; None of a discount.
        percent: of all other lines; of a discount alone.
    """

    item: str
    micros: int
    tokens: int | None = None
    micros_per_million: int | None = None
    percent: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what receipts have."""
        if self.percent is not None:
            return {"item": self.item, "percent": self.percent, "micros": self.micros}
        return {
            "item": self.item,
            "tokens": self.tokens,
            "micros_per_million": self.micros_per_million,
            "micros": self.micros,
        }


@dataclass(frozen=True, slots=True)
class PricedUsage:
    """What a request cost. `price_id` is empty where its model had no price."""

    price_id: str
    total_micros: int
    lines: tuple[PriceLine, ...]


NO_PRICE = PricedUsage("", 0, ())


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost from a moment on; micros are for a million tokens."""

    price_id: str
    model: str
    valid_from_unix_seconds: float
    input_micros: int
    cached_device_micros: int
    cached_cpu_micros: int
    cached_nvme_micros: int
    output_micros: int
    batch_discount_percent: int

    def cost(
        self, tokens: Tokens, *, service_tier: str, is_cached_answer: bool = False
    ) -> PricedUsage:
        """Return what some tokens cost. It grows with each of them, and no cached one adds to it.

        Tokens that are said to be cached beyond those of the prompt cost nothing, nor do those of
        an answer that was kept of an equal request: nobody computed it.
        """
        if is_cached_answer:
            line = PriceLine("cached_answer", 0, tokens.num_prompt + tokens.num_output, 0)
            return PricedUsage(self.price_id, 0, (line,))
        left, priced = tokens.num_prompt, []
        for tier in CACHE_TIERS:
            num_cached = min(left, getattr(tokens, f"num_cached_{tier}"))
            left -= num_cached
            rate = getattr(self, f"cached_{tier}_micros")
            priced.append((f"cached_{tier}", num_cached, rate))
        priced.insert(0, ("input", left, self.input_micros))
        priced.append(("output", tokens.num_output, self.output_micros))
        return self._rounded(priced, self._discount_percent(service_tier))

    def _discount_percent(self, service_tier: str) -> int:
        return self.batch_discount_percent if service_tier == BATCH_TIER else 0

    def _rounded(self, priced: list[tuple[str, int, int]], percent: int) -> PricedUsage:
        lines, exact, rounded = [], 0, 0
        for item, num_tokens, rate in priced:
            exact += 100 * num_tokens * rate
            micros = _half_up(exact) - rounded
            rounded += micros
            if num_tokens:
                lines.append(PriceLine(item, micros, num_tokens, rate))
        total = _half_up(exact * (100 - percent) // 100)  # exact: it was multiplied by 100
        if percent and lines:
            lines.append(PriceLine("batch_discount", total - rounded, percent=percent))
        return PricedUsage(self.price_id, total, tuple(lines))


def _half_up(parts: int) -> int:
    return (2 * parts + _PARTS) // (2 * _PARTS)
