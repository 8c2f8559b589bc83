"""The phases of a start: what it is doing now, and how long each took.

Knows names and times. Knows nothing of what a phase does or of who listens.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

REPORT_SECONDS = 1.0
"""Progress within a phase is told this often at most."""


class StartUp:
    """Tells what goes on, takes the time, and ends the start when told to. One thread at a time.

    Attributes:
        current: name of the phase that began last.
        seconds: of each phase that has ended, by its name, in the order of their ends.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        *,
        check_stop: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            report: called with what goes on, in words.
            check_stop: called before; what it raises ends the start.
            clock: seconds.
        """
        self.seconds: dict[str, float] = {}
        self._report = report
        self._check_stop = check_stop
        self._clock = clock
        self.current = ""
        self._told_at = 0.0

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Be in a phase, e.g. ``loading weights``, while the context lasts; once or repeatedly."""
        self._check_stop()
        started = self._clock()
        self.current = name
        self._tell("", started)
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - started

    def percent(self, done: int, total: int) -> None:
        """Say how much of the phase is done, as a percentage."""
        self._progress(f" {100 * done // max(total, 1)}%")

    def count(self, done: int, total: int) -> None:
        """Say how many of the phase's parts are done."""
        self._progress(f" {done}/{total}")

    def summary(self) -> str:
        """Return the seconds of all phases, in one line."""
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"started in {sum(self.seconds.values()):.2f} s: {parts}"

    def _progress(self, text: str) -> None:
        self._check_stop()
        now = self._clock()
        if now - self._told_at >= REPORT_SECONDS:
            self._tell(text, now)

    def _tell(self, text: str, now: float) -> None:
        self._told_at = now
        self._report(f"{self.current}{text}")
