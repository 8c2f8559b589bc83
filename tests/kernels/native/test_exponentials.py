"""Exponentials of vectors: a program against the C sources."""

from pathlib import Path

from support.native_program import check_program


def test_they_are_as_near_as_they_say(tmp_path: Path) -> None:
    check_program(Path(__file__).with_name("exponentials.c"), tmp_path)
