"""Clocks that tests set."""


class Now:
    """A wall clock that stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds
