"""What is fetched ahead of the next layer's attention: a program against the C sources."""

from pathlib import Path

from support.native_program import check_program


def test_all_of_it_and_nothing_else_is_fetched(tmp_path: Path) -> None:
    # Products by AMX fetch nothing: they leave memory no time.
    check_program(Path(__file__).with_name("upcoming.c"), tmp_path, without={"amx_tile"})
