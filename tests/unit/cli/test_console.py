"""Tables on terminals and in pipes."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from pagoda_cli.admin.tables import print_table
from pagoda_cli.console import widen

LONG = "x" * 150


def printed(width: int | None = None, **options: bool) -> str:
    console = Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]
    table = Table(box=None)
    for name in ("FIRST", "SECOND"):
        table.add_column(name, no_wrap=True)
    table.add_row(LONG, LONG)
    widen(console, table)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_is_cut_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")  # of a terminal that others see
    assert printed().split() == ["FIRST", "SECOND", LONG, LONG]


def test_a_terminal_has_its_width() -> None:
    assert "…" in printed(width=60, force_terminal=True)


def test_lists_of_accounts_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("TENANT", "MODEL"), [(LONG, LONG)])
    assert capsys.readouterr().out.split() == ["TENANT", "MODEL", LONG, LONG]
