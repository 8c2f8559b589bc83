"""Which tasks a step's attention has: a program against the C sources."""

from pathlib import Path

from support.native_program import check_program


def test_each_key_is_walked_once_for_each_row_that_sees_it(tmp_path: Path) -> None:
    check_program(Path(__file__).with_name("attention_tasks.c"), tmp_path)
