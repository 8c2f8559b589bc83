"""What an output goes through before anybody reads it: all that sequences know of policies."""

from collections.abc import Callable
from typing import Protocol

CONTENT_FILTER = "content_filter"


class OutputGuard(Protocol):
    """One output's.

    Attributes:
        is_blocked: the output ends here; what it still holds back never goes out.
    """

    is_blocked: bool

    @property
    def is_pending(self) -> bool:
        """Whether some of it waits for a judgement."""

    @property
    def num_taken(self) -> int:
        """Characters taken so far."""

    @property
    def num_shown(self) -> int:
        """How many of those have gone out, or what stands for them."""

    def push(self, text: str) -> str:
        """Take more text; return what can go out now."""

    def flush(self) -> str:
        """Return what can go out of the rest; the output has ended."""

    def shown(self) -> str:
        """Return what a judgement has let go out."""

    async def run(self, on_judged: Callable[[], None]) -> None:
        """Have the output judged until its end; `on_judged` is called after each judgement."""
