"""Numbers on command lines: exact amounts of money, and numbers that are finite."""

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

import typer

MICROS = 1_000_000


def amount_up_to(most: int) -> Callable[[str], int]:
    """Return a parser of amounts from 0 to `most` units, such as 0.25, to millionths; exact."""

    def amount(text: str) -> int:
        try:
            micros = Decimal(text) * MICROS
        except InvalidOperation:
            micros = Decimal("NaN")
        if not micros.is_finite():
            raise typer.BadParameter(f"{text!r} is no amount such as 0.25")
        if not 0 <= micros <= most * MICROS or micros != micros.to_integral_value():
            raise typer.BadParameter(f"{text!r}: give 0 to {most:,}, with at most 6 decimals")
        return int(micros)

    return amount


def number_up_to(most: float) -> Callable[[str], float]:
    """Return a parser of numbers from 0 to `most`: neither infinite nor none."""

    def number(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not 0 <= found <= most:  # nan is neither
            raise typer.BadParameter(f"{text!r}: give a number from 0 to {most:,.0f}")
        return found

    return number
