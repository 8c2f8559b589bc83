"""What tokens cost: exact integers, whose lines sum to the total."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from pagoda_gateway.accounts.money.price import CACHE_TIERS, Price, PricedUsage, Tokens

RATES = ("input", "cached_device", "cached_cpu", "cached_nvme", "output")
LARGEST_RATE = 10**12
LARGEST_COUNT = 2**32 - 1


def drawn_price(draws: random.Random) -> Price:
    largest = draws.choice([3, 1_000, 2_000_000, LARGEST_RATE])
    input_micros = draws.randint(0, largest)
    cached = [draws.randint(0, input_micros) for _ in CACHE_TIERS]
    percent = draws.choice([0, 1, 33, 50, 99, 100])
    return Price("p", "m", 0.0, input_micros, *cached, draws.randint(0, largest), percent)


def drawn_tokens(draws: random.Random) -> Tokens:
    largest = draws.choice([1, 10, 5_000, LARGEST_COUNT])
    num_prompt = draws.randint(0, largest)
    cached, left = [], num_prompt
    for _ in CACHE_TIERS:
        cached.append(draws.randint(0, left))
        left -= cached[-1]
    draws.shuffle(cached)
    return Tokens(num_prompt, *cached, draws.randint(0, largest))


def exact_cost(price: Price, tokens: Tokens, service_tier: str) -> Fraction:
    cost = Fraction(tokens.num_prompt - tokens.num_cached) * price.input_micros
    for tier in CACHE_TIERS:
        rate = getattr(price, f"cached_{tier}_micros")
        cost += Fraction(getattr(tokens, f"num_cached_{tier}")) * rate
    cost = (cost + Fraction(tokens.num_output) * price.output_micros) / 1_000_000
    if service_tier == "batch":
        cost *= Fraction(100 - price.batch_discount_percent, 100)
    return cost


def is_whole(priced: PricedUsage) -> bool:
    numbers = [priced.total_micros, *(line.micros for line in priced.lines)]
    return all(type(number) is int for number in numbers)


@pytest.mark.parametrize("seed", range(8))
def test_lines_sum_to_the_total_which_is_within_half_a_micro_of_the_exact_cost(seed: int) -> None:
    draws = random.Random(seed)
    for _ in range(400):
        price, tokens = drawn_price(draws), drawn_tokens(draws)
        service_tier = draws.choice(["default", "batch"])
        priced = price.cost(tokens, service_tier=service_tier)
        assert is_whole(priced)
        assert sum(line.micros for line in priced.lines) == priced.total_micros
        exact = exact_cost(price, tokens, service_tier)
        assert abs(priced.total_micros - exact) <= Fraction(1, 2)
        assert priced.total_micros <= 2**53
        for line in priced.lines:
            if line.tokens is not None and line.micros_per_million is not None:
                share = Fraction(line.tokens * line.micros_per_million, 1_000_000)
                assert abs(line.micros - share) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_more_tokens_never_cost_less_and_cached_ones_never_more(seed: int) -> None:
    draws = random.Random(seed)
    for _ in range(400):
        price, tokens = drawn_price(draws), drawn_tokens(draws)
        service_tier = draws.choice(["default", "batch"])

        def total(counts: Tokens, price: Price = price, tier: str = service_tier) -> int:
            return price.cost(counts, service_tier=tier).total_micros

        more_output = replace(tokens, num_output=tokens.num_output + draws.randint(0, 1000))
        more_prompt = replace(tokens, num_prompt=tokens.num_prompt + draws.randint(0, 1000))
        nothing_cached = Tokens(tokens.num_prompt, 0, 0, 0, tokens.num_output)
        assert total(tokens) <= total(more_output)
        assert total(tokens) <= total(more_prompt)
        assert total(tokens) <= total(nothing_cached)
        assert price.cost(tokens, service_tier="batch").total_micros <= (
            price.cost(tokens, service_tier="default").total_micros
        )


def test_a_receipts_lines_are_named_and_those_without_tokens_are_left_out() -> None:
    price = Price("p", "m", 0.0, 500_000, 50_000, 100_000, 200_000, 1_500_000, 50)
    priced = price.cost(Tokens(100, 60, 0, 10, 7), service_tier="batch")
    assert [line.as_json() for line in priced.lines] == [
        {"item": "input", "tokens": 30, "micros_per_million": 500_000, "micros": 15},
        {"item": "cached_device", "tokens": 60, "micros_per_million": 50_000, "micros": 3},
        {"item": "cached_nvme", "tokens": 10, "micros_per_million": 200_000, "micros": 2},
        {"item": "output", "tokens": 7, "micros_per_million": 1_500_000, "micros": 11},
        {"item": "batch_discount", "percent": 50, "micros": -16},
    ]
    assert priced.total_micros == 15  # 30.5 by half is 15.25


def test_halves_are_rounded_up() -> None:
    price = Price("p", "m", 0.0, 500_000, 0, 0, 0, 0, 0)
    costs = [price.cost(Tokens(n, 0, 0, 0, 0), service_tier="default") for n in range(4)]
    assert [priced.total_micros for priced in costs] == [0, 1, 1, 2]


def test_more_cached_tokens_than_the_prompt_has_are_not_billed() -> None:
    price = Price("p", "m", 0.0, 1_000_000, 1_000_000, 1_000_000, 1_000_000, 0, 0)
    assert price.cost(Tokens(10, 8, 8, 8, 0), service_tier="default").total_micros == 10
