from pathlib import Path

import pytest

from pagoda_cli.up.child import MAX_BACKOFF_SECONDS, STABLE_SECONDS, Child, ChildSpec


def make_child(tmp_path: Path) -> Child:
    return Child(ChildSpec("x", ("true",), {}, tmp_path / "x.log"))


def test_the_delay_doubles_up_to_a_limit(tmp_path: Path) -> None:
    child = make_child(tmp_path)

    delays = [child.next_delay(0.0) for _ in range(8)]

    assert delays[:3] == [0.25, 0.5, 1.0]
    assert delays[-1] == MAX_BACKOFF_SECONDS


def test_who_ran_for_long_starts_soon(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    for _ in range(5):
        child.next_delay(0.0)

    assert child.next_delay(STABLE_SECONDS) == 0.25


def test_the_tail_of_the_log(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    assert child.log_tail() == "  (no log)"
    child.spec.log.write_text("".join(f"line {i}\n" for i in range(5000)))

    assert child.log_tail(2) == "  line 4998\n  line 4999"


def test_the_tail_of_a_json_log_is_for_people(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.spec.log.write_text(
        'plain\n{"level": "ERROR", "message": "no room:\\n a\\n b", "service": "decode"}\n'
        '{"level": "ERROR", "message": "failed", "error": "Traceback"}\n[1]\n'
    )

    assert child.log_tail() == (
        "  plain\n  ERROR no room:\n   a\n   b\n  ERROR failed\n  Traceback\n  [1]"
    )


def test_the_tail_is_of_the_last_start(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.spec.log.write_text("the error of another day\n")
    child.start(0.0)
    while child.poll() is None:
        pass
    with child.spec.log.open("a") as log:
        log.write("today's\n")

    assert child.log_tail() == "  today's"


def test_a_large_log_moves_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda_cli.up.child.MAX_LOG_BYTES", 10)
    child = make_child(tmp_path)
    child.spec.log.write_text("x" * 11)
    child.trim_log()

    assert child.spec.log.read_text() == ""
    assert Path(f"{child.spec.log}.1").read_text() == "x" * 11
