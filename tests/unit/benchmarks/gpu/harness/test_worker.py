import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gpu.harness import worker as point_worker
from gpu.harness.supervise import DEVICE_LOST
from support import unruly_points


@pytest.fixture
def work(tmp_path):
    def run(*groups, first=0):
        output = tmp_path / "out.jsonl"
        arguments = [unruly_points.PLAN, "--groups", *groups, "--scope", "", "--device", "cpu"]
        arguments += [
            "--seed",
            "5",
            "--folder",
            str(tmp_path),
            "--output",
            str(output),
            "--first",
            str(first),
        ]
        status = point_worker.main(arguments)
        lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
        return status, [json.loads(line) for line in lines]

    return run


def rows_of(lines):
    begun = {line["begin"]: (line["group"], line["name"]) for line in lines if "begin" in line}
    return {begun[line["end"]]: line["row"] for line in lines if "end" in line}


def test_every_point_is_a_line_before_and_a_line_after(work):
    status, lines = work("good")
    assert status == 0
    assert [line.get("begin", line.get("end")) for line in lines] == [0, 0, 1, 1, 2, 2]
    rows = rows_of(lines)
    assert rows["good", "build"]["seed"] == 5
    assert rows["good", "works"]["status"] == rows["good", "again"]["status"] == "passed"


def test_what_takes_seconds_is_imported_before_the_turn_comes(work, monkeypatch):
    order = []
    good = replace(unruly_points.GROUPS[0], prepare=lambda: order.append("prepared"))
    monkeypatch.setattr(unruly_points, "GROUPS", [good])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(read=lambda: order.append("begun")))
    work("good", "--wait")
    assert order == ["prepared", "begun"]


def test_an_exception_costs_its_point_and_resets_the_subject(work):
    _, lines = work("raising", "good")
    rows = rows_of(lines)
    assert rows["raising", "raises"]["reason"] == "ValueError: out of registers"
    assert rows["raising", "missing"] | {"took_seconds": 0} == {
        "status": "not available",
        "reason": "the pool is too small",
        "took_seconds": 0,
    }
    assert rows["raising", "works"]["num_resets"] == 1
    assert rows["good", "works"]["num_resets"] == 0


def test_nothing_is_measured_after_a_gate_that_failed(work):
    _, lines = work("wrong", "broken", "good")
    assert [*rows_of(lines)] == [
        ("wrong", "build"),
        ("wrong", "wrong"),
        ("broken", "build"),
        ("good", "build"),
        ("good", "works"),
        ("good", "again"),
    ]


def test_a_process_started_again_goes_on_with_the_next_point(work):
    _, lines = work("good", "raising", first=2)
    assert [*rows_of(lines)][:2] == [("good", "again"), ("raising", "build")]


@pytest.mark.parametrize("first", [1, 2])
def test_a_build_or_a_gate_that_ended_the_process_is_not_tried_again(work, first):
    _, lines = work("dead gate", "good", first=first)
    assert next(iter(rows_of(lines))) == ("good", "build")


def test_a_lost_device_ends_the_process(work, monkeypatch):
    monkeypatch.setattr(point_worker, "_device_is_lost", lambda setting: True)
    status, lines = work("raising")
    assert status == DEVICE_LOST
    assert [*rows_of(lines)][-1] == ("raising", "raises")
