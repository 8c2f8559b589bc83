"""Runs cases in worker processes and survives what happens to them.

A worker that dies or does not answer costs the case it was in; a new one goes on with the next.
Knows workers and their lines. Knows nothing of kernels or tables.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from case_worker import DEVICE_LOST
from deadline import Deadline

CASE_SECONDS = 60.0
START_SECONDS = 60.0
POLL_SECONDS = 0.02

DIED = ("worker", "")
"""Key of the row of a worker that died between cases."""

Row = dict[str, Any]
Rows = dict[tuple[str, str], Row]


@dataclass
class Shard:
    """One worker after another over the same share of the cases.

    The lines of a worker say ``begin`` with an index, an operator and a name, and optionally how
    many seconds the case may take; then ``end`` with the row. A worker that is started again is
    told the index of the first case that is left.
    """

    command: list[str]
    output: Path
    errors: Path
    process: subprocess.Popen[bytes] | None = None
    first: int = 0
    offset: int = 0
    begun: dict[str, Any] | None = None
    since: float = 0.0
    is_done: bool = False
    is_killed: bool = False
    rows: Rows = field(default_factory=dict)

    def start(self) -> None:
        """Start a worker at the first case that is left."""
        self.begun, self.since, self.is_killed = None, time.monotonic(), False
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*self.command, "--output", str(self.output), "--first", str(self.first)],
                stdout=errors,
                stderr=errors,
                start_new_session=True,  # compilers it started go with it
            )

    def read(self) -> None:
        """Take in the whole lines written since the last time."""
        if not self.output.exists():
            return
        with self.output.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.offset += len(whole)
        for text in whole.splitlines():
            line = json.loads(text)
            self.since = time.monotonic()
            if "begin" in line:
                self.begun, self.first = line, line["begin"] + 1
            elif self.begun is not None:
                self.rows[self.begun["op"], self.begun["name"]] = line["row"]
                self.begun = None

    def fail_begun(self, reason: str) -> None:
        """Give the case that was begun, if any, the row of a crash."""
        if self.begun is not None:
            row = {"status": "crashed", "reason": reason}
            self.rows[self.begun["op"], self.begun["name"]] = row

    def kill(self) -> None:
        """End the worker and what it started, once: its number may be another's afterwards."""
        assert self.process is not None
        if self.is_killed:
            return
        self.is_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def last_words(self) -> str:
        """Return the last line that the worker printed."""
        lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "no message"

    def step(self) -> None:
        """Look once at the worker; start the next one where the last cannot go on."""
        assert self.process is not None
        status = self.process.poll()
        self.read()
        limit = START_SECONDS if self.begun is None else self.begun.get("seconds", CASE_SECONDS)
        if status == 0:
            self.is_done = True
        elif status is None and time.monotonic() - self.since > limit:
            self.kill()
            self.read()
            self._go_on(f"no answer in {limit:.0f} s")
        elif status is not None:
            self._go_on(f"worker ended with status {status}: {self.last_words()}")

    def _go_on(self, reason: str) -> None:
        assert self.process is not None
        if self.begun is None and self.process.returncode != DEVICE_LOST:
            # Died between cases: starting again would die again.
            self.rows[DIED] = {"status": "crashed", "reason": reason}
            self.is_done = True
            return
        self.fail_begun(reason)
        self.start()


def run_phase(
    phase: str,
    *,
    arguments: Sequence[str],
    num_workers: int,
    deadline: Deadline,
) -> Rows:
    """Run one phase of `case_worker.py` over all cases; returns the rows that came in time.

    Args:
        phase: check, time or baselines.
        arguments: further arguments of every worker.
        num_workers: processes at a time; 1 where the device must be undisturbed.
        deadline: when workers are ended, whatever they do.
    """
    worker = str(Path(__file__).with_name("case_worker.py"))
    with tempfile.TemporaryDirectory() as folder:
        shards = [
            Shard(
                [sys.executable, worker, phase, "--shard", f"{i}/{num_workers}", *arguments],
                Path(folder, f"{i}.jsonl"),
                Path(folder, f"{i}.err"),
            )
            for i in range(num_workers)
        ]
        for shard in shards:
            shard.start()
        try:
            while not all(shard.is_done for shard in shards) and not deadline.has_passed:
                for shard in shards:
                    if not shard.is_done:
                        shard.step()
                time.sleep(POLL_SECONDS)
        finally:
            for shard in shards:
                if shard.process is not None:
                    shard.kill()
        return {key: row for shard in shards for key, row in shard.rows.items()}
