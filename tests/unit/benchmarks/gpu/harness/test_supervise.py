import os
import select
import signal
import subprocess
import sys
import time

import pytest
from gpu.harness.deadline import Deadline
from gpu.harness.importable import BENCHMARKS
from gpu.harness.phase import Phase
from gpu.harness.points import CEILINGS_FILE
from gpu.kernels.plan import POINT

BENCH = """
import os, time
from pathlib import Path
from gpu.kernels.case import Case

def crash(seed):
    os.abort()

def hang(seed):
    Path(os.environ["FAKE_HANGS"]).touch()
    time.sleep(600)

def raises(seed):
    raise RuntimeError("out of registers")

CHECKS = {"right": lambda seed: 0.0, "abort": crash, "wrong": lambda seed: float("nan"),
          "raise": raises, "hang": hang, "last": lambda seed: 0.0}

def cases(device):
    return [Case(op="fake", name=name, check=check, tolerance=0.0, build=lambda: lambda: None,
                 num_bytes=1000, seconds=float(os.environ["FAKE_SECONDS"]))
            for name, check in CHECKS.items() if name in os.environ["FAKE_CASES"].split()]
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "bench_fake.py").write_text(BENCH, encoding="utf-8")

    def run_cases(names, plan="check_groups", only=None, workers=1, now=time.monotonic, limit="60"):
        monkeypatch.setenv("FAKE_CASES", names)
        monkeypatch.setenv("FAKE_SECONDS", limit)
        monkeypatch.setenv("FAKE_HANGS", str(tmp_path / "hangs"))
        folder = str(tmp_path)
        phase = Phase(f"gpu.kernels.plan:{plan}", folder, "cpu", 5, tmp_path, lambda rows: None)
        groups = [group for group in phase.groups() if only in (None, group.name)]
        rows = phase.run_beside_each_other(groups, Deadline(60.0, now), workers)
        return {
            group.partition(": ")[2]: row
            for (group, point), row in rows.items()
            if point == POINT and row["status"] != "out of time"
        }

    return run_cases


@pytest.mark.slow
def test_a_case_that_dies_costs_only_itself(run):
    rows = run("right abort wrong raise last")
    assert {name: row["status"] for name, row in rows.items()} == {
        "right": "passed",
        "abort": "crashed",
        "wrong": "wrong",
        "raise": "crashed",
        "last": "passed",
    }
    assert "status -6" in rows["abort"]["reason"]
    assert rows["raise"]["reason"] == "RuntimeError: out of registers"
    assert rows["last"]["seed"] == 9


@pytest.mark.slow
def test_a_case_that_does_not_answer_is_ended(run):
    rows = run("hang last", limit="0.3")
    assert rows["hang"]["reason"] == "no answer in 0 s"
    assert rows["last"]["status"] == "passed"


@pytest.mark.slow
def test_the_deadline_ends_workers_and_keeps_what_came(run, tmp_path):
    hangs = tmp_path / "hangs"
    rows = run("right hang last", now=lambda: time.monotonic() + 60.0 * hangs.exists())
    assert rows.keys() == {"right"}


@pytest.mark.slow
def test_several_workers_share_the_cases(run):
    rows = run("right wrong raise last", workers=2)
    assert rows.keys() == {"right", "wrong", "raise", "last"}


@pytest.mark.slow
def test_times_only_what_it_is_told(run, tmp_path):
    (tmp_path / CEILINGS_FILE).write_text(
        '{"copy_bytes_per_second": 1e9, "matmul_flops_per_second": 1e9, "launch_seconds": 0}',
        encoding="utf-8",
    )
    rows = run("right last", "time_groups", only="fake: last")
    assert rows.keys() == {"last"}
    assert rows["last"]["p50_us"] > 0


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from gpu.harness.deadline import Deadline
{run}
"""
OF_CASES = """
from gpu.harness.phase import Phase
phase = Phase("gpu.kernels.plan:check_groups", {folder!r}, "cpu", 5, Path({folder!r}), print)
phase.run_beside_each_other(phase.groups(), Deadline(600.0), 1)
"""
OF_TESTS = """
from gpu.kernels.device_tests import run_device_tests
run_device_tests(Deadline(600.0), 1, Path({folder!r}))
"""
LONG = """
import os, time
from pathlib import Path
from gpu.kernels.case import Case

def test_long(seed=0):
    with open({fifo!r}, "w") as fifo:
        fifo.write(str(os.getpid()))
    time.sleep(600)

def cases(device):
    return [Case(op="fake", name="long", check=test_long, tolerance=0.0, build=None)]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run"), [("bench_fake", OF_CASES), ("test_fake", OF_TESTS)], ids=["cases", "tests"]
)
def test_no_process_outlives_a_run_that_was_killed(tmp_path, name, run):
    folder, fifo = tmp_path / "cases", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    (folder / f"{name}.py").write_text(LONG.format(fifo=str(fifo)), encoding="utf-8")
    code = RUN.format(benchmarks=str(BENCHMARKS), run=run.format(folder=str(folder)))
    with subprocess.Popen([sys.executable, "-c", code]) as killed:
        worker = os.pidfd_open(int(fifo.read_text(encoding="utf-8")))
        killed.kill()
    ended, _, _ = select.select([worker], [], [], 10.0)
    if not ended:
        signal.pidfd_send_signal(worker, signal.SIGKILL)
    os.close(worker)
    assert ended, "the worker still ran"
