import json
from dataclasses import replace

import pytest
from gpu.engine import section as engine_section
from gpu.engine.section import EngineSection
from gpu.engine.table import engine_table, transformers_ratio
from gpu.harness.deadline import Deadline
from gpu.harness.points import Group, Point
from gpu.harness.report import failures_and_notes, predictions, write_predictions
from gpu.harness.section import Context, section_data
from gpu.transfer.section import TransferSection
from gpu.transfer.table import transfer_table

DECODE = {
    "status": "passed",
    "batch": 64,
    "context": 1024,
    "p50_ms": 8.0,
    "predicted_ms": 6.5,
    "over_floor": 1.4,
    "goal": 1.35,
    "meets_goal": False,
    "gap_us": 61.0,
    "is_graph": True,
}
KERNELS = {
    "status": "passed",
    "busy_ms": 7.5,
    "predicted_ms": 6.5,
    "over_floor": 1.3,
    "kernels": [{"name": "_decode_kernel_of_attention", "ms": 3.0}, {"name": "nvjet", "ms": 2.0}],
}
TRANSFORMERS = {"status": "passed", "batch": 64, "context": 1024, "p50_ms": 20.0}
LATE = {"status": "out of time"}
WRONG = {"status": "wrong", "num_tokens": 64, "num_equal": 63}


def context(seconds, save=lambda data: None):
    return Context(Deadline(seconds), seed=5, save=save)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_engine_section_in_tiny_size():
    saved = []
    result = EngineSection("tiny", "cpu").run(context(250.0, saved.append))
    assert not result.failures
    assert not result.notes
    rows = {(point["group"], point["name"]): point for point in result.data["points"]}
    assert {row["status"] for row in rows.values()} == {"passed"}
    assert ("tiny llama", "preemption, graphs") in rows
    decode = rows["tiny", "decode b4 ctx32"]
    assert decode["over_floor"] == pytest.approx(decode["p50_ms"] / decode["floor_ms"])
    assert rows["tiny", "prefill 96 chunked"]["chunk"] == 32
    kernels = rows["tiny", "kernels b4 ctx32"]
    assert kernels["busy_ms"] > 0
    assert kernels["kernels"][0]["ms"] > 0
    assert rows["start-up", "ready"]["predicted_full_seconds"] > 0
    assert result.table[0] == "golden tokens: 18 passed"
    assert all(len(line) <= 100 for line in result.table)
    assert result.predictions[0][0] == "tiny decode b1 ctx32"
    assert saved[-1] == result.data


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_whole_transfer_section_in_tiny_size():
    result = TransferSection("tiny", "cpu").run(context(150.0))
    assert not result.failures
    assert not result.notes
    assert len(result.table) == 13
    assert [line.endswith("goal 70%") for line in result.table].count(True) == 2
    assert all(len(line) <= 100 for line in result.table)
    alone, *others = (
        point["tokens"] for point in result.data["points"] if point["name"].startswith("ttft ")
    )
    assert len(others) == 4
    assert all(of_way == others[0] for of_way in others), "whichever way KV comes"
    assert [first for first, _ in alone] == [first for first, _ in others[0]]
    assert all(second is not None for _, second in others[0])


def test_the_table_shows_prediction_floor_goal_and_gap():
    rows = {
        ("tiny llama", "batch, eager"): {"status": "passed"},
        ("8b", "build"): {"status": "passed"},
        ("8b", "decode b64 ctx1024"): DECODE,
        ("8b", "transformers b64 ctx1024"): TRANSFORMERS,
        ("8b", "decode b256 ctx8192"): {"status": "not available", "reason": "too large"},
        ("8b", "kernels b64 ctx1024"): KERNELS,
    }
    golden, _, decode, transformers, missing, kernels = engine_table(rows)
    assert golden == "golden tokens: 1 passed"
    assert decode.split()[4:] == ["8.00", "6.50", "1.40x!", "1.35x", "gap", "61", "us!"]
    assert "2.50x!" in transformers
    assert "NOT AVAILABLE  too large" in missing
    assert kernels.split()[4:] == ["7.50", "6.50", "1.30x", "3.00", "_decode_ke"]


def test_transformers_alone_has_no_ratio():
    assert transformers_ratio("8b", TRANSFORMERS, {}) is None


def test_failures_say_what_is_wrong_and_notes_what_is_missing():
    rows = {
        ("tiny llama", "batch, graphs"): WRONG,
        ("width 8b", "graphs"): {"status": "wrong", "error": 2.0, "tolerance": 0.1},
        ("transfer", "link"): {"status": "wrong", "num_bad_blocks": 3},
        ("death", "pool"): {"status": "wrong", "is_equal": True, "finds_change": False},
        ("8b", "build"): {"status": "left out", "reason": "tiny llama: wrong"},
        ("8b", "capture"): {"status": "left out", "reason": "tiny llama: wrong"},
        ("moe", "capture"): {"status": "crashed", "reason": "OutOfMemoryError"},
        ("moe", "decode"): LATE,
    }
    failures, notes = failures_and_notes(rows)
    assert failures == [
        "tiny llama, batch, graphs: 63 of 64 tokens up to the first that differs",
        "width 8b, graphs: log-probabilities differ by 2.0e+00 > 1.0e-01",
        "transfer, link: 3 blocks whose digest does not match",
        "death, pool: blocks equal: True, a change seen: False",
        "moe, capture: OutOfMemoryError",
    ]
    assert notes == [
        "8b: left out: tiny llama: wrong",
        "1 points were not reached in time, see the file",
    ]


@pytest.mark.parametrize(
    ("status", "is_refused"), [("wrong", True), ("passed", False), ("crashed", False)]
)
def test_only_a_shape_whose_tokens_are_wrong_is_refused(status, is_refused):
    point = Point("decode", lambda subject: {})
    shape = Group("8b", lambda setting: None, (point,), requires=("width 8b",))
    rows = {("width 8b", "graphs"): {"status": status}, ("tiny llama", "batch"): WRONG}
    may_run, refused = engine_section._sorted_out([shape, replace(shape, name="other")], rows)
    assert (not may_run) == is_refused
    assert (("8b", "decode") in refused) == is_refused


def test_predictions_are_written_once(tmp_path):
    found = predictions({("8b", "decode b64 ctx1024"): DECODE, ("8b", "ready"): LATE})
    assert found == [("8b decode b64 ctx1024", "6.50 ms", "8.00 ms")]
    provenance = {"gpu": "NVIDIA H200", "date": "2026-11-20", "commit": "abc"}
    write_predictions(tmp_path, "engine", provenance, found)
    notes = tmp_path / "engine-notes.md"
    assert "| 8b decode b64 ctx1024 | 6.50 ms | 8.00 ms | |" in notes.read_text(encoding="utf-8")
    notes.write_text("mine", encoding="utf-8")
    write_predictions(tmp_path, "engine", provenance, found)
    assert notes.read_text(encoding="utf-8") == "mine"


def test_transfer_lines_say_what_was_refused():
    rows = {
        ("transfer", "build"): {"status": "passed"},
        ("transfer", "link pool 32 blocks"): {"status": "not available", "reason": "no CUDA IPC"},
    }
    (line,) = transfer_table(rows)
    assert line.endswith("NOT AVAILABLE  no CUDA IPC")


def test_rows_of_a_section_are_json():
    assert json.dumps(section_data(context(1.0), {("8b", "decode"): DECODE}))
