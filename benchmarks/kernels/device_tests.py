"""Runs tests/kernels on the device with the host's own pytest, several processes at a time.

The repository's pytest settings name plugins a GPU host need not have, so `device_tests.ini` beside
this file takes their place. Most of the time goes into compiling kernels, hence the processes.
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
from pathlib import Path
from typing import Any

from deadline import Deadline
from discovery import HERE, ROOT

SHARD_VARIABLE = "PAGODA_TEST_SHARD"
RESULTS_VARIABLE = "PAGODA_TEST_RESULTS"
IGNORED = ("test_compile*", "test_lazy*", "test_launches*")
POLL_SECONDS = 0.1


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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [_start(shard, num_processes, tests, folder) for shard in range(num_processes)]
        try:
            while not deadline.has_passed and any(p.poll() is None for p in processes):
                time.sleep(POLL_SECONDS)
        finally:
            statuses = [_end(process) for process in processes]
        summary = summarise(_lines(folder))
        ended_badly = [
            _last_line(folder / f"{shard}.log")
            for shard, status in enumerate(statuses)
            if status not in (0, 1, 5, -signal.SIGKILL)  # passed, failed, none, out of time
        ]
    if ended_badly:
        summary |= {"status": "failed", "processes_that_ended_badly": ended_badly}
    return {**summary, "seconds": round(time.monotonic() - start, 1)}


def summarise(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counts and failures of the lines `pytest_shard` wrote; each test counts once."""
    collected, outcomes, failures = 0, dict[str, str](), list[dict[str, Any]]()
    for line in lines:
        collected += line.get("collected", 0)
        if "test" not in line:
            continue
        outcomes[line["test"]] = line["outcome"]
        if line["outcome"] == "failed":
            failures.append(line)
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    not_run = max(0, collected - sum(counts.values()))
    if failures:
        status = "failed"
    elif not counts["passed"]:
        status = "not run"
    else:
        status = "incomplete" if not_run else "passed"
    return {"status": status, **counts, "not_run": not_run, "failures": failures}


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


def _end(process: "subprocess.Popen[bytes]") -> int:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _lines(folder: Path) -> Iterable[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if text.endswith("\n"):
                yield json.loads(text)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"
