import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pagoda_cli.app import COMMANDS, make_app

HEAVY = ("torch", "nats", "grpc", "aiohttp", "uvicorn", "redis", "sqlalchemy")


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(make_app(["--help"]), ["--help"])

    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_loads(name: str) -> None:
    result = CliRunner().invoke(make_app([name]), [name, "--help"])

    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(make_app(["upp"]), ["upp"])

    assert result.exit_code == 2
    assert "upp" in result.output


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['pagoda', '--help']; from pagoda_cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{script}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout

    assert "heavy: []" in output
