import pytest
import torch
from gpu.kernels.discovery import CASES, Unloadable, bench_files, declared_cases, load_bench

EXISTING_OPS = {"paged_attention", "kv_write", "rms_norm", "rope", "silu_mul", "block_copy"}


def write_bench(folder, op, text):
    (folder / f"bench_{op}.py").write_text(text, encoding="utf-8")


GOOD = """
from gpu.kernels.case import Case
def cases(device):
    return [Case(op="one", name=n, check=lambda s: 0.0, tolerance=0.0, build=lambda: None)
            for n in ("a", "b")]
"""


def test_finds_bench_files_by_name_alone(tmp_path):
    write_bench(tmp_path, "two", GOOD)
    write_bench(tmp_path, "one", GOOD)
    (tmp_path / "other.py").write_text("raise SystemExit", encoding="utf-8")
    assert [path.name for path in bench_files(tmp_path)] == ["bench_one.py", "bench_two.py"]
    assert [path.name for path in bench_files(tmp_path, ["two"])] == ["bench_two.py"]


def test_names_the_ops_there_are(tmp_path):
    write_bench(tmp_path, "one", GOOD)
    with pytest.raises(ValueError, match="ops: expected some of one, got three"):
        bench_files(tmp_path, ["one", "three"])


def test_a_file_that_cannot_be_imported_does_not_hide_the_others(tmp_path):
    write_bench(tmp_path, "broken", "import does_not_exist_anywhere")
    write_bench(tmp_path, "one", GOOD)
    found = list(declared_cases(bench_files(tmp_path), torch.device("cpu")))
    assert isinstance(found[0], Unloadable)
    assert found[0].op == "broken"
    assert "does_not_exist_anywhere" in str(found[0].error)
    assert [case.name for case in found[1:]] == ["a", "b"]


def test_every_bench_file_declares_its_op_with_a_way_to_judge_it():
    files = bench_files(CASES)
    assert {path.stem.removeprefix("bench_") for path in files} >= EXISTING_OPS
    for path in files:
        cases = list(load_bench(path).cases(torch.device("cuda")))
        names = [(case.op, case.name) for case in cases]
        assert names
        assert len(set(names)) == len(names), f"{path.name}: names repeat"
        assert all(case.num_bytes or case.num_flops for case in cases), path.name
