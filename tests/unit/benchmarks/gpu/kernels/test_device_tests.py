import time
from pathlib import Path

import pytest
from gpu.harness.deadline import Deadline
from gpu.kernels.device_tests import IGNORED, run_device_tests, summarise

TESTS = """
import pytest
import torch
@pytest.mark.parametrize("path", ["cpu", "triton"])
def test_one(path):
    assert path == "triton"
@pytest.mark.gpu
@pytest.mark.timeout(5)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_two(n):
    assert n != 2, "two is wrong"
@pytest.mark.slow_cpu
def test_three():
    raise AssertionError
"""


@pytest.mark.slow
def test_runs_the_device_s_share_of_a_folder(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "compile").mkdir()
    (tmp_path / "compile" / "test_some.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path.parent / "conftest.py").write_text("import does_not_exist", encoding="utf-8")
    got = run_device_tests(Deadline(60.0), 2, tmp_path)
    assert (got["status"], got["passed"], got["failed"], got["not_run"]) == ("failed", 3, 1, 0)
    assert got["failures"][0]["test"].endswith("test_two[2]")
    assert "two is wrong" in got["failures"][0]["reason"]


def test_what_is_ignored_is_there():
    kernels = Path(__file__).resolve().parents[4] / "kernels"
    assert [pattern for pattern in IGNORED if not any(kernels.glob(pattern))] == []


@pytest.mark.slow
def test_what_the_time_did_not_suffice_for_is_told(tmp_path):
    began = tmp_path / "began"
    text = f"""
import pathlib, time
def test_a(): pass
def test_b(): pathlib.Path({str(began)!r}).touch(); time.sleep(600)
def test_c(): pass
"""
    (tmp_path / "test_some.py").write_text(text, encoding="utf-8")
    deadline = Deadline(600.0, lambda: time.monotonic() + 600.0 * began.exists())
    got = run_device_tests(deadline, 1, tmp_path)
    assert (got["status"], got["passed"], got["not_run"]) == ("incomplete", 1, 2)


UNRULY = """
import os
import torch
def test_aborts(): os.abort()
def test_good(): pass
def test_loses_the_device():
    torch.cuda.is_initialized = lambda: True
    def synchronize(): raise RuntimeError("illegal memory access")
    torch.cuda.synchronize = synchronize
def test_better(): pass
"""


@pytest.mark.slow
def test_a_test_that_ends_its_process_or_the_device_costs_itself(tmp_path):
    (tmp_path / "test_some.py").write_text(UNRULY, encoding="utf-8")
    (tmp_path / "test_other.py").write_text("import does_not_exist_anywhere", encoding="utf-8")
    got = run_device_tests(Deadline(60.0), 1, tmp_path)
    assert (got["status"], got["passed"], got["failed"], got["not_run"]) == ("failed", 2, 3, 0)
    reasons = {line["test"].rpartition("::")[2]: line["reason"] for line in got["failures"]}
    assert "status -6" in reasons["test_aborts"]
    assert "illegal memory access" in reasons["test_loses_the_device"]
    assert "processes_that_ended_badly" not in got


TEARDOWN = """
import pytest
@pytest.fixture
def lost():
    yield
    raise RuntimeError("device lost")
def test_a(lost): pass
"""


@pytest.mark.slow
def test_a_teardown_that_fails_fails_the_test(tmp_path):
    (tmp_path / "test_some.py").write_text(TEARDOWN, encoding="utf-8")
    assert run_device_tests(Deadline(60.0), 1, tmp_path)["failed"] == 1


def test_nothing_collected_is_no_success():
    assert summarise({})["status"] == "not run"
