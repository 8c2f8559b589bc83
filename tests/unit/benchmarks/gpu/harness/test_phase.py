from dataclasses import replace
from itertools import pairwise

import pytest
from gpu.harness import phase as point_phase
from gpu.harness.deadline import Deadline
from gpu.harness.phase import Phase
from support import unruly_points

pytestmark = pytest.mark.slow


@pytest.fixture
def saved():
    return []


@pytest.fixture
def phase(tmp_path, saved):
    folder = tmp_path / "run"
    folder.mkdir()
    return Phase(unruly_points.PLAN, "", "cpu", 5, folder, saved.append)


def groups(*names):
    return [group for group in unruly_points.GROUPS if group.name in names]


def statuses(rows, group):
    return {name: row["status"] for (of, name), row in rows.items() if of == group}


@pytest.mark.parametrize("is_in_turn", [True, False])
def test_what_goes_wrong_costs_what_stands_on_it(phase, is_in_turn):
    wanted = groups("dying", "hanging", "dead gate", "dead", "broken", "good")
    if is_in_turn:
        rows = phase.run_in_turn(wanted, Deadline(60.0))
    else:
        rows = phase.run_beside_each_other(wanted, Deadline(60.0), num_workers=2)
    assert statuses(rows, "dying") == {"build": "passed", "dies": "crashed", "works": "passed"}
    assert statuses(rows, "hanging") == {"build": "passed", "hangs": "crashed", "works": "passed"}
    assert rows["hanging", "hangs"]["reason"] == "no answer in 0 s"
    assert "status -6" in rows["dying", "dies"]["reason"]
    assert statuses(rows, "dead gate") == {
        "build": "passed",
        "dies": "crashed",
        "works": "left out",
    }
    assert statuses(rows, "dead") == {"build": "crashed", "works": "left out"}
    assert rows["broken", "works"] == {"status": "left out", "reason": "build: crashed"}
    assert set(statuses(rows, "good").values()) == {"passed"}


def test_rows_are_given_away_as_they_come(phase, saved):
    rows = phase.run_in_turn(groups("good", "raising"), Deadline(60.0))
    assert len(saved) >= 2
    assert saved[-1] == rows
    assert all(len(some) <= len(more) for some, more in pairwise(saved))


def test_a_group_out_of_time_leaves_its_successors_theirs(phase):
    rows = phase.run_in_turn(list(reversed(groups("good", "slow"))), Deadline(10.0))
    assert rows["slow", "hangs"]["status"] == rows["slow", "works"]["status"] == "out of time"
    assert set(statuses(rows, "good").values()) == {"passed"}


def test_the_next_process_starts_early_and_waits(phase):
    with phase.started(groups("good")) as first:
        first.shard.step()
        assert not first.shard.rows
        rows = phase.run_in_turn(groups("good"), Deadline(60.0), first)
    assert rows["good", "works"]["status"] == "passed"


def test_processes_of_like_names_share_no_file(phase):
    (good,) = groups("good")
    with (
        phase.started([replace(good, name="llama-3.1-8b")]) as one,
        phase.started([replace(good, name="llama-3.1-70b")]) as other,
    ):
        assert one.shard.errors != other.shard.errors


def test_a_worker_that_cannot_start_is_said_once(phase, tmp_path, monkeypatch):
    monkeypatch.setattr(point_phase, "WORKER", tmp_path / "worker.py")
    (tmp_path / "worker.py").write_text("raise SystemExit('no torch')", encoding="utf-8")
    rows = phase.run_in_turn(groups("good"), Deadline(60.0))
    assert rows["good", "works"]["status"] == "left out"
    assert rows["good", "works"]["reason"].endswith("no torch")
