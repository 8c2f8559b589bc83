"""Bytes of request bodies that this process holds at once; everybody's together.

Knows sizes only: `http.body_reader` reads.
"""

from types import TracebackType

from pagoda_gateway.errors import UnavailableError

RETRY_AFTER_SECONDS = 1.0


class BodyBudget:
    """A sum with a limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_held_bytes = 0

    @property
    def num_held_bytes(self) -> int:
        """Bytes of all bodies that somebody holds now."""
        return self._num_held_bytes

    def take(self, num_bytes: int) -> None:
        """Hold so many more, until `free`.

        Raises:
            UnavailableError: there is no room; nothing was taken.
        """
        if self._num_held_bytes + num_bytes > self._max_bytes:
            raise UnavailableError(
                f"bodies of {self._num_held_bytes} bytes are in work, the limit of this server is "
                f"{self._max_bytes} bytes; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._num_held_bytes += num_bytes

    def free(self, num_bytes: int) -> None:
        """Give back what was taken."""
        self._num_held_bytes -= num_bytes


class HeldBytes:
    """What one request holds of a budget; all of it is freed when the block ends."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def __enter__(self) -> "HeldBytes":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _traceback: TracebackType | None
    ) -> None:
        self._budget.free(self._num_bytes)

    @property
    def num_bytes(self) -> int:
        """How many there are."""
        return self._num_bytes

    def take(self, num_bytes: int) -> None:
        """Hold so many more.

        Raises:
            UnavailableError: see `BodyBudget.take`.
        """
        self._budget.take(num_bytes)
        self._num_bytes += num_bytes
