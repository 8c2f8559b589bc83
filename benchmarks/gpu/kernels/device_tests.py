"""Runs tests/kernels on the device with the host's own pytest, several processes at a time.

The repository's pytest settings name plugins a GPU host need not have, so `device_tests.ini` beside
this file takes their place. Most of the time goes into compiling kernels, hence the processes. A
test that ends its process, or the device for it, costs itself: a new process goes on after it.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu.harness.deadline import Deadline
from gpu.harness.importable import FOLDERS, ROOT
from gpu.harness.rows import Rows
from gpu.harness.supervise import DIED, Shard, watch

IGNORED = ("compile/*", "native/*", "test_lazy*", "test_launches*", "test_memory_guard*")
"""What says nothing about a device: what a compiler writes for one, and all that runs on a CPU."""

COLLECTED = "collected"
"""Group of the rows that say how many tests a process has to run; theirs is `TESTS`."""

TESTS = "tests"
FAILED = ("failed", "crashed")


def run_device_tests(
    deadline: Deadline, num_processes: int, tests: Path = ROOT / "tests" / "kernels"
) -> dict[str, Any]:
    """Run the tests until they end or the deadline passes.

    Returns:
        Counts, the failures with their reasons, and ``not_run``: how many the time did not allow.
    """
    if importlib.util.find_spec("pytest") is None:
        return {"status": "not run", "reason": "pytest is not importable on this host"}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        shards = [
            Shard(
                [*_command(tests), "--shard", f"{i}/{num_processes}"],
                Path(folder, f"{i}.log"),
                environment=_environment(),
                start_seconds=deadline.seconds_left,  # it collects everything before it begins
            )
            for i in range(num_processes)
        ]
        for shard in shards:
            shard.start()
            stack.callback(shard.kill)
            shard.begin()
        rows = watch(shards, deadline)
    ended_badly = [shard.rows[DIED]["reason"] for shard in shards if DIED in shard.rows]
    summary = summarise(rows)
    if ended_badly:
        summary |= {"status": "failed", "processes_that_ended_badly": ended_badly}
    return {**summary, "seconds": round(time.monotonic() - start, 1)}


def summarise(rows: Rows) -> dict[str, Any]:
    """Counts and failures of the rows that `pytest_shard` wrote."""
    found = {name: row for (group, name), row in rows.items() if group == TESTS}
    outcomes = [row["status"] for row in found.values()]
    counts = {
        "passed": outcomes.count("passed"),
        "failed": sum(map(outcomes.count, FAILED)),
        "skipped": outcomes.count("skipped"),
    }
    failures = [{"test": name, **row} for name, row in found.items() if row["status"] in FAILED]
    collected = sum(row["num_tests"] for (group, _), row in rows.items() if group == COLLECTED)
    not_run = max(0, collected - sum(counts.values()))
    if failures:
        status = "failed"
    elif not counts["passed"]:
        status = "not run"
    else:
        status = "incomplete" if not_run else "passed"
    return {"status": status, **counts, "not_run": not_run, "failures": failures}


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
    }


def _command(tests: Path) -> list[str]:
    # What lies above needs plugins and libraries that a GPU host need not have.
    command = [sys.executable, "-m", "pytest", "-q", str(tests), "--confcutdir", str(tests)]
    command += ["--rootdir", str(ROOT)]
    command += ["-c", str(Path(__file__).with_name("device_tests.ini"))]
    command += ["-p", "gpu.kernels.pytest_shard", "-p", "no:cacheprovider", "-W", "default"]
    command += ["--continue-on-collection-errors"]
    return command + [f"--ignore-glob={tests / pattern}" for pattern in IGNORED]
