"""Runs points in worker processes and survives what happens to them.

A worker that dies or does not answer costs the point it was in; a new one goes on with the next.
Knows workers and their lines. Knows nothing of what is measured, nor of tables.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from gpu.harness.deadline import Deadline
from gpu.harness.rows import OnRows, Rows

DEVICE_LOST = 70
"""Exit status of a worker whose device is unusable; the row that says why has been written."""

START_SECONDS = 60.0
READ_BYTES = 1 << 16

LOOK_SECONDS = 0.2
"""Longest sleep between two looks at the deadline, whose clock need not be the one of `select`."""

DIED = ("worker", "")
"""Key of the row of a worker that died between points."""


@dataclass
class Shard:
    """One worker after another over the same points.

    The lines of a worker say ``begin`` with an index, names of group and point, and how many
    seconds it may take; then ``end`` with the row. They come by a pipe, which ends when the worker
    does. A worker that is started again is told the index of the first point that is left.
    """

    command: list[str]
    errors: Path
    environment: Mapping[str, str] | None = None
    start_seconds: float = START_SECONDS
    process: subprocess.Popen[bytes] | None = None
    first: int = 0
    begun: dict[str, Any] | None = None
    since: float = 0.0
    is_done: bool = False
    rows: Rows = field(default_factory=dict)
    _lines: FileIO | None = None
    _rest: bytes = b""

    def start(self) -> None:
        """Start a worker at the first point that is left; it may wait until `begin`."""
        self.begun, self.since, self._rest = None, time.monotonic(), b""
        lines, output = os.pipe()
        os.set_blocking(lines, False)
        self._lines = FileIO(lines)
        command = [*self.command, "--output", f"/proc/self/fd/{output}", "--first", str(self.first)]
        try:
            with self.errors.open("wb") as errors:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    env=self.environment,
                    pass_fds=(output,),
                    start_new_session=True,  # compilers it started go with it
                )
        finally:
            os.close(output)

    def begin(self) -> None:
        """End the input of the worker, which may wait for that."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.since = time.monotonic()

    def fileno(self) -> int:
        """Return what becomes readable when the worker has written or ended."""
        assert self._lines is not None
        return self._lines.fileno()

    @property
    def limit_seconds(self) -> float:
        """Longest time between two of its lines at present."""
        if self.begun is None:
            return self.start_seconds
        return float(self.begun["seconds"])

    @property
    def seconds_left(self) -> float:
        """Until its next line is late."""
        return max(0.0, self.since + self.limit_seconds - time.monotonic())

    def step(self) -> None:
        """Take in what the worker wrote; start the next one where it cannot go on."""
        is_running = self._read()
        if is_running and self.seconds_left:
            return
        reason = f"no answer in {self.limit_seconds:.0f} s"
        self.kill()
        assert self.process is not None
        status = self.process.returncode
        if not is_running and status == 0:
            self.is_done = True
            return
        if not is_running:
            reason = f"worker ended with status {status}: {self._last_words()}"
        if self.begun is None and status != DEVICE_LOST:
            # Died between points: starting again would die again.
            self.rows[DIED] = {"status": "crashed", "reason": reason}
            self.is_done = True
            return
        if self.begun is not None:
            row = {"status": "crashed", "reason": reason}
            self.rows[self.begun["group"], self.begun["name"]] = row
        self.start()
        self.begin()

    def kill(self) -> None:
        """End the worker and what it started, and take in what it wrote. Idempotent."""
        if self.process is None or self.process.returncode is not None:
            return  # its number may be another's by now
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()  # the status is its own if it had ended before
        self._read()
        assert self._lines is not None
        assert self.process.stdin is not None
        self._lines.close()
        self.process.stdin.close()

    def _read(self) -> bool:
        """Take in the whole lines there are; returns whether there may be more."""
        assert self._lines is not None
        while new := self._lines.read(READ_BYTES):
            *whole, self._rest = (self._rest + new).split(b"\n")
            for text in whole:
                self._take(json.loads(text))
        return new is None

    def _take(self, line: dict[str, Any]) -> None:
        self.since = time.monotonic()
        if "begin" in line:
            self.begun, self.first = line, line["begin"] + 1
        elif self.begun is not None:
            self.rows[self.begun["group"], self.begun["name"]] = line["row"]
            self.begun = None

    def _last_words(self) -> str:
        lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "no message"


def watch(shards: Sequence[Shard], deadline: Deadline, on_rows: OnRows = lambda rows: None) -> Rows:
    """Follow workers that have begun until all are done or the deadline passes.

    Args:
        shards: the workers; they are not ended.
        deadline: when to return.
        on_rows: given all rows whenever there are more of them.

    Returns:
        The rows that came.
    """
    rows: Rows = {}
    while not deadline.has_passed and (running := [s for s in shards if not s.is_done]):
        left = min(LOOK_SECONDS, deadline.seconds_left, *(s.seconds_left for s in running))
        select.select(running, [], [], left)
        for shard in running:
            shard.step()
        num_known = len(rows)
        rows = {key: row for shard in shards for key, row in shard.rows.items()}
        if len(rows) > num_known:
            on_rows(rows)
    return rows
