"""What a process reports of one point: a row. Knows nothing of processes or of what is measured."""

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
"""What was found. ``status`` is passed unless the row says otherwise: wrong, not available."""

Rows = dict[tuple[str, str], Row]
"""By names of group and point."""

OnRows = Callable[[Rows], object]

BUILD = "build"
"""Name of the row that says how building the subject went."""


def reason_of(error: BaseException) -> str:
    """First lines of what went wrong, short enough for a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")
