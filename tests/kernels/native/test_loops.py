"""Loops of the native library's threads: a program against the C sources."""

from pathlib import Path

from support.native_program import check_program


def test_each_task_is_done_once_and_nobody_waits_for_a_slow_thread(tmp_path: Path) -> None:
    check_program(Path(__file__).with_name("loops.c"), tmp_path)
