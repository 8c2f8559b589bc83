"""Where tables are printed: on a terminal as wide as it is, into a pipe as wide as they are."""

from rich.console import Console, RenderableType
from rich.measure import Measurement

_MIN_COLUMNS = 120  # of what is no table
_MAX_COLUMNS = 100_000


def widen(console: Console, *tables: RenderableType) -> None:
    """Give a console the width that tables need, unless it is a terminal's.

    Who reads a pipe cannot make it wider, and what is cut is lost to it.
    """
    if console.is_terminal:
        return
    options = console.options.update(max_width=_MAX_COLUMNS)
    widths = [Measurement.get(console, options, table).maximum for table in tables]
    console.width = max(_MIN_COLUMNS, console.width, *widths)
