"""Runs tests/kernels on the device with the host's own pytest, several processes at a time.

The repository's pytest settings name plugins a GPU host need not have, so `device_tests.ini` beside
this file takes their place. Most of the time goes into compiling kernels, hence the processes. A
test that ends its process, or the device for it, costs itself: a new process goes on after it.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from case_worker import DEVICE_LOST
from deadline import Deadline
from discovery import HERE, ROOT

SHARD_VARIABLE = "PAGODA_TEST_SHARD"
RESULTS_VARIABLE = "PAGODA_TEST_RESULTS"
IGNORED = ("*test_compile*", "test_lazy*", "test_launches*")
ENDED_WELL = (0, 1, 5)
"""Passed, failed, none."""


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
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(num_processes) as pool:
        folder = Path(name)

        def run(shard: int) -> str:
            return _run_shard(shard, num_processes, tests, folder, deadline)

        ended_badly = [words for words in pool.map(run, range(num_processes)) if words]
        results = sorted(folder.glob("*.jsonl"))
        summary = summarise(line for path in results for line in lines_of(path))
    if ended_badly:
        summary |= {"status": "failed", "processes_that_ended_badly": ended_badly}
    return {**summary, "seconds": round(time.monotonic() - start, 1)}


def summarise(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counts and failures of the lines `pytest_shard` wrote; each test counts once."""
    collected, outcomes, failures = 0, dict[str, str](), dict[str, dict[str, Any]]()
    for line in lines:
        collected += line.get("collected", 0)
        if "test" not in line:
            continue
        outcomes[line["test"]] = line["outcome"]
        if line["outcome"] == "failed":
            failures.setdefault(line["test"], line)
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    not_run = max(0, collected - sum(counts.values()))
    if failures:
        status = "failed"
    elif not counts["passed"]:
        status = "not run"
    else:
        status = "incomplete" if not_run else "passed"
    return {"status": status, **counts, "not_run": not_run, "failures": [*failures.values()]}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of results; none if there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _run_shard(shard: int, num_shards: int, tests: Path, folder: Path, deadline: Deadline) -> str:
    """Run one share in a process after another; returns what one said that ended between tests."""
    results, log = folder / f"{shard}.jsonl", folder / f"{shard}.log"
    while not deadline.has_passed:
        status = _status(_start(shard, num_shards, tests, folder), deadline)
        if status is None:
            break
        words = f"the process ended with status {status}: {_last_line(log)}"
        if test := _interrupted(lines_of(results)):
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": test, "outcome": "failed", "reason": words}) + "\n")
        elif status != DEVICE_LOST:
            return "" if status in ENDED_WELL else words
    return ""


def _interrupted(lines: Iterable[dict[str, Any]]) -> str | None:
    """The test that was begun last, if nothing is known of it."""
    last, outcomes = None, set()
    for line in lines:
        last = line.get("begun", last)
        outcomes.add(line.get("test"))
    return None if last in outcomes else last


def _start(shard: int, num_shards: int, tests: Path, folder: Path) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        SHARD_VARIABLE: f"{shard}/{num_shards}",
        RESULTS_VARIABLE: str(folder / f"{shard}.jsonl"),
        "PYTHONPATH": os.pathsep.join(
            map(str, (HERE, ROOT / "kernels", ROOT / "engine", ROOT / "tests"))
        ),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q"]
    command += ["-c", str(HERE / "device_tests.ini"), "--rootdir", str(ROOT)]
    command += ["-p", "pytest_shard", "-p", "no:cacheprovider", "-W", "default"]
    command += ["--continue-on-collection-errors"]
    command += [f"--ignore-glob={tests / pattern}" for pattern in IGNORED]
    with (folder / f"{shard}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(tests)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _status(process: "subprocess.Popen[bytes]", deadline: Deadline) -> int | None:
    """How the process ended by itself; None where the time is up, which ends it."""
    try:
        return process.wait(deadline.seconds_left)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"
