"""One supervised process: its command, its log, its end, its next start."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
FIRST_BACKOFF_SECONDS = 0.25
MAX_BACKOFF_SECONDS = 10.0
STABLE_SECONDS = 10.0  # who ran this long starts again without much delay
MAX_LOG_BYTES = 64 << 20

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    log: Path
    stop_stage: int = 0  # stages stop one after the other, 0 first
    stop_seconds: float = 0.0  # it was told to take so long at most to finish its work
    ready_host: str = "127.0.0.1"  # what it listens on
    ready_port: int | None = None  # where GET /readyz answers; None: not asked


class Child:
    """A process that is started, watched and stopped. Times are the caller's clock's."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.num_starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._backoff_seconds = 0.0
        self._log_begin = 0

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and its end was not yet noticed."""
        return self._process is not None

    def start(self, now: float) -> None:
        """Start the process in a group of its own; it dies with us, whatever kills us.

        Its output is appended to the log. The session is ours: Linux gives each session an equal
        share of the processors, in which a process's niceness counts among its own session alone.

        Raises:
            OSError: there is no room for a process, or the log cannot be written.
        """
        self.num_starts += 1
        self._started_at = now
        parent = os.getpid()
        self.spec.log.parent.mkdir(mode=0o700, exist_ok=True)
        with self.spec.log.open("ab") as log:
            self._log_begin = log.tell()
            self._process = subprocess.Popen(
                self.spec.command,
                env=dict(self.spec.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=lambda: _die_with(parent),  # safe: we have one thread
            )

    def poll(self) -> str | None:
        """Return how the process ended (`exited with code 1`) once it did, else None."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self.signal(signal.SIGKILL)  # what it may have left behind in its group
        self._process = None
        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    def next_delay(self, now: float) -> float:
        """Return the seconds to wait before the next start; they double with each early end."""
        if now - self._started_at >= STABLE_SECONDS:
            self._backoff_seconds = 0.0
        self._backoff_seconds = min(
            max(FIRST_BACKOFF_SECONDS, 2 * self._backoff_seconds), MAX_BACKOFF_SECONDS
        )
        return self._backoff_seconds

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGKILL to the whole group, others to the process itself."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)

    def trim_log(self) -> None:
        """Keep the log within bounds: past 64 MiB it is copied to `<log>.1` and emptied."""
        with contextlib.suppress(OSError):
            if self.spec.log.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(self.spec.log, f"{self.spec.log}.1")
                os.truncate(self.spec.log, 0)

    def log_tail(self, num_lines: int = 20) -> str:
        """Return the last lines of the log since the last start, as people read them."""
        with contextlib.suppress(OSError), self.spec.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = self._log_begin if self._log_begin <= size else 0  # it was trimmed
            log.seek(max(begin, size - 16384))
            lines = log.read().decode(errors="replace").splitlines()
            return textwrap.indent("\n".join(map(_readable, lines[-num_lines:])), "  ")
        return "  (no log)"


def _readable(line: str) -> str:
    """Return level, message and traceback of a JSON log line; any other line as it is."""
    try:
        record = json.loads(line)
        parts = [f"{record['level']} {record['message']}", record.get("error", "")]
    except (ValueError, KeyError, TypeError):
        return line
    return "\n".join(part for part in parts if part)


def _die_with(parent: int) -> None:
    """Run in the child before exec: have the kernel kill it when its parent dies (Linux)."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in the meantime
        os.kill(os.getpid(), signal.SIGKILL)
