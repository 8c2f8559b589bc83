"""Keeps processes running until told to stop, then stops them in order.

docs/adr/0002-supervisor.md says why this is no library. Knows nothing of what the processes do.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from pagoda_cli.up.child import Child, ChildSpec
from pagoda_cli.up.errors import ChildExitedError, ChildNotStartedError

POLL_SECONDS = 0.05
TRIM_SECONDS = 30.0
MARGIN_SECONDS = 1.5  # to say what is left and to exit, beside the time to finish work


class Supervisor:
    """Starts, watches, restarts and stops a fixed set of processes."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        margin_seconds: float = MARGIN_SECONDS,
    ) -> None:
        self.children = {spec.name: Child(spec) for spec in specs}
        self._report = report
        self._clock = clock
        self._margin_seconds = margin_seconds
        self._restart_at: dict[str, float] = {}
        self._trim_at = 0.0

    def start(self) -> None:
        """Start all processes at once.

        Raises:
            ChildNotStartedError: one cannot be started.
        """
        for name, child in self.children.items():
            try:
                child.start(self._clock())
            except OSError as error:
                raise ChildNotStartedError(name, str(error), child.spec.log) from error

    def check_start(self) -> None:
        """Look for processes that ended; during the start none may.

        Raises:
            ChildExitedError: one ended; carries the end of its log.
        """
        for name, child in self.children.items():
            if (reason := child.poll()) is not None:
                raise ChildExitedError(name, reason, child.spec.log, child.log_tail())

    def keep_running(self) -> None:
        """Start what ended again, later and later if it keeps dying."""
        now = self._clock()
        for name, child in self.children.items():
            if (reason := child.poll()) is not None:
                self._start_later(name, reason, now)
            elif not child.is_running and now >= self._restart_at[name]:
                self._start_again(name, now)
        if now >= self._trim_at:
            self._trim_at = now + TRIM_SECONDS
            for child in self.children.values():
                child.trim_log()

    def _start_again(self, name: str, now: float) -> None:
        try:
            self.children[name].start(now)
        except OSError as error:  # of this moment, perhaps: the others go on
            self._start_later(name, f"could not be started ({error})", now)

    def _start_later(self, name: str, reason: str, now: float) -> None:
        child = self.children[name]
        delay = child.next_delay(now)
        self._restart_at[name] = now + delay
        self._report(f"{name} {reason}; starting it again in {delay:g} s ({child.spec.log})")

    async def run(self, stop: asyncio.Event) -> None:
        """Keep everything running until `stop` is set; look when a child ends or is due."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, ended.set)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                ended.clear()
                self.keep_running()
                ending = asyncio.ensure_future(ended.wait())
                await asyncio.wait(
                    (stopping, ending),
                    timeout=self._seconds_until_due(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                ending.cancel()
        finally:
            stopping.cancel()
            loop.remove_signal_handler(signal.SIGCHLD)

    def _seconds_until_due(self) -> float:
        """Return when to look next, whatever happens: a process is to be started, or logs cut."""
        waiting = [
            self._restart_at[name] for name, child in self.children.items() if not child.is_running
        ]
        return max(0.0, min([self._trim_at, *waiting]) - self._clock())

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop stage after stage: SIGTERM, then SIGKILL for the rest; `hurry` cuts it short.

        A stage has the longest time that one of its processes was told to take, and a margin.
        """
        for stage in sorted({child.spec.stop_stage for child in self.children.values()}):
            children = [c for c in self.children.values() if c.spec.stop_stage == stage]
            await self._stop_stage(children, hurry)

    async def _stop_stage(self, children: list[Child], hurry: asyncio.Event) -> None:
        seconds = max(child.spec.stop_seconds for child in children)
        deadline = self._clock() + seconds + self._margin_seconds
        for child in children:
            child.signal(signal.SIGTERM)
        while any(child.is_running for child in children):
            for child in children:
                child.poll()
                if child.is_running and (hurry.is_set() or self._clock() > deadline):
                    child.signal(signal.SIGKILL)
            if any(child.is_running for child in children):
                await asyncio.sleep(POLL_SECONDS / 5)


async def pause(stop: asyncio.Event) -> None:
    """Wait for the next look, or less if `stop` is set."""
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await stop.wait()
    except TimeoutError:
        return
