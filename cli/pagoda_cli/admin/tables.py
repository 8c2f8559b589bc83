"""Lists of accounts as tables."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from pagoda_cli.console import widen


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    widen(console, table)
    console.print(table)


def moment(unix_seconds: float | None) -> str:
    """Return a time for people, in UTC."""
    if unix_seconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(unix_seconds))


def amount(micros: int) -> str:
    """Return millionths of a unit as units: exact, with at least two decimals."""
    sign, (units, rest) = "-" * (micros < 0), divmod(abs(micros), 1_000_000)
    decimals = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{sign}{units}.{decimals}"


def unix_seconds(moment_in_utc: datetime) -> int:
    """Return a time that somebody wrote without a zone, in UTC."""
    return int(moment_in_utc.replace(tzinfo=UTC).timestamp())
