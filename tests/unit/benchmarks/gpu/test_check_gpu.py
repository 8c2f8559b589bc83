import json
import os
import subprocess
import sys
from itertools import groupby

import pytest
import torch
from gpu import check_gpu
from gpu.harness.ceilings import Ceilings
from gpu.harness.deadline import Deadline
from gpu.harness.environment import commit, gpu_slug, versions
from gpu.harness.points import CEILINGS_FILE
from gpu.harness.report import write_results
from gpu.harness.section import Context, SectionResult
from gpu.kernels.section import KernelSection
from gpu.kernels.table import kernel_table

CEILINGS = Ceilings(4e12, 8e14, 2e-6)
PASSED = {"status": "passed", "passed": 3, "failed": 0, "skipped": 1, "not_run": 0, "seconds": 9.0}
TIMING = {
    "p50_us": 100.0,
    "gigabytes_per_second": 3600.0,
    "fraction_of_ceiling": 0.8,
    "goal": 0.85,
    "meets_goal": False,
}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="for hosts without a GPU")
def test_without_a_gpu_it_says_so_and_exits_2():
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, check_gpu.__file__],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a CUDA device" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "slug"),
    [("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"), ("NVIDIA H200", "h200"), ("Tesla T4", "t4")],
)
def test_results_folder_is_named_after_the_gpu(name, slug):
    assert gpu_slug(name) == slug


def test_versions_and_commit_may_be_missing(tmp_path):
    assert versions()["torch"].startswith(torch.__version__.partition("+")[0])
    assert commit(tmp_path) is None


def test_table_shows_rate_goal_and_baselines_relative_to_the_kernel():
    baselines = {"sdpa": {"p50_us": 150.0}, "flashinfer": {"unavailable": "ImportError"}}
    rows = {
        ("rope", "T64"): {"status": "passed", "timing": TIMING, "baselines": baselines},
        ("silu_mul", "T8"): {"status": "wrong", "error": float("nan"), "tolerance": 1e-3},
        ("kv_write", "T8"): {"status": "passed"},
    }
    table = "\n".join(kernel_table(CEILINGS, PASSED, rows))
    assert "copy 4000 GB/s" in table
    assert "3 passed, 0 failed, 1 skipped in 9 s" in table
    assert "3600 GB/s" in table
    assert "80%!" in table
    assert "sdpa 1.50x" in table
    assert "WRONG" in table
    assert "NOT TIMED" in table


def test_json_has_no_nan_and_notes_are_never_overwritten(tmp_path):
    provenance = {"gpu": "NVIDIA H200", "commit": None}
    path = write_results(tmp_path / "h200", "kernels", provenance, {"error": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {**provenance, "error": "nan"}
    notes = path.with_name("notes.md")
    assert "prediction" in notes.read_text(encoding="utf-8")
    notes.write_text("mine", encoding="utf-8")
    write_results(tmp_path / "h200", "kernels", provenance, {})
    assert notes.read_text(encoding="utf-8") == "mine"


def use_sections(monkeypatch, sections):
    provenance = {"gpu": "NVIDIA H200", "driver": "1", "date": "2026-11-20", "commit": None}
    monkeypatch.setattr(check_gpu, "SECTIONS", sections)
    monkeypatch.setattr(check_gpu, "BUDGET_SECONDS", dict.fromkeys(sections, 60.0))
    monkeypatch.setattr(check_gpu, "has_cuda", lambda: (True, ""))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(check_gpu, "describe", lambda *_: provenance)


class FakeSection:
    name = "fake"

    def __init__(self, failures):
        self.failures = failures

    def run(self, context):
        predictions = [("step", "1 ms", "2 ms")]
        return SectionResult({"seed": context.seed}, ["the table"], self.failures, [], predictions)


@pytest.mark.parametrize("form", ["--output {}", "--output={}/"])
def test_results_name_no_folder_of_the_host(tmp_path, monkeypatch, form):
    use_sections(monkeypatch, {"fake": FakeSection([])})
    provenance = {"gpu": "NVIDIA H200", "driver": "1", "date": "2026-11-20", "commit": None}
    monkeypatch.setattr(
        check_gpu, "describe", lambda _, arguments: {**provenance, "command": arguments}
    )
    check_gpu.main(form.format(tmp_path).split())
    command = json.loads((tmp_path / "fake.json").read_text(encoding="utf-8"))["command"]
    assert " ".join(command) == form.format("DIR")


class BrokenSection:
    name = "broken"

    def run(self, context):
        context.save({"points": ["so far"]})
        raise OSError("no processes left")


@pytest.mark.parametrize(("failures", "status"), [([], 0), (["fake: wrong"], 1)])
def test_a_section_brings_its_own_file_table_and_verdict(
    tmp_path, monkeypatch, capsys, failures, status
):
    use_sections(monkeypatch, {"fake": FakeSection(failures)})
    assert check_gpu.main(["--output", str(tmp_path), "--seed", "5"]) == status
    assert json.loads((tmp_path / "fake.json").read_text(encoding="utf-8"))["seed"] == 5
    assert capsys.readouterr().out.splitlines()[1] == "the table"
    notes = (tmp_path / "fake-notes.md").read_text(encoding="utf-8")
    assert "| step | 1 ms | 2 ms | |" in notes


def test_a_section_that_breaks_does_not_cost_the_others(tmp_path, monkeypatch, capsys):
    use_sections(monkeypatch, {"broken": BrokenSection(), "fake": FakeSection([])})
    assert check_gpu.main(["--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "the table" in printed
    assert "FAILED: section broken: OSError: no processes left" in printed
    broken = json.loads((tmp_path / "broken.json").read_text(encoding="utf-8"))
    assert broken["points"] == ["so far"]


def test_the_whole_run_takes_under_nine_minutes():
    assert check_gpu.BUDGET_SECONDS.keys() == check_gpu.SECTIONS.keys()
    assert sum(check_gpu.BUDGET_SECONDS.values()) < 540


def test_sections_share_the_time_by_their_budgets(tmp_path, monkeypatch):
    left = []

    class Timed(FakeSection):
        def run(self, context):
            left.append(context.deadline.seconds_left)
            return super().run(context)

    sections = {name: Timed([]) for name in ("a", "b")}
    use_sections(monkeypatch, sections)
    monkeypatch.setattr(check_gpu, "BUDGET_SECONDS", {"a": 30.0, "b": 10.0})
    check_gpu.main(["--output", str(tmp_path)])
    assert left == [pytest.approx(30, abs=1), pytest.approx(40, abs=1)]


BENCH_FILE = """
from gpu.kernels.case import Case

def cases(device):
    def case(name, error):
        return Case(op="fake", name=name, check=lambda seed: error, tolerance=0.0, num_bytes=1000,
                    build=lambda: lambda: None,
                    baselines=dict.fromkeys(("other", "compile"), lambda: lambda: None))
    return [case("right", 0.0), case("wrong", 1.0)]
"""


@pytest.mark.slow
def test_a_wrong_kernel_is_refused_timing(tmp_path, monkeypatch):
    (tmp_path / "bench_fake.py").write_text(BENCH_FILE, encoding="utf-8")
    monkeypatch.setattr(
        "gpu.kernels.section._measured_ceilings",
        lambda phase, _: (CEILINGS.write(phase.folder / CEILINGS_FILE), CEILINGS)[1],
    )
    section, saved = KernelSection(tmp_path, "cpu"), []
    context = Context(Deadline(60.0), seed=5, skip_tests=True, save=saved.append)
    result = section.run(context)
    known = [
        sorted(set().union(*data["cases"]) & {"error", "timing", "baselines"}) for data in saved
    ]
    stages = [[], ["error"], ["error", "timing"], ["baselines", "error", "timing"]]
    assert [known for known, _ in groupby(known)] == stages, "saved as rows come"
    assert saved[-1] == result.data
    right, wrong = result.data["cases"]
    assert right["timing"]["p50_us"] > 0
    assert right["baselines"]["other"]["p50_us"] > 0
    assert right["baselines"]["compile"]["p50_us"] > 0
    assert "timing" not in wrong
    assert len(result.failures) == 1
    assert "fake wrong: error 1.0e+00 > 0.0e+00, not timed" in result.failures[0]
    assert result.data["ceilings"]["copy_bytes_per_second"] == 4e12
