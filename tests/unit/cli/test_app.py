import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from pagoda_cli.commands import COMMANDS, make_app

MEMBERS = ("pagoda_runtime", "pagoda_gateway", "pagoda_router", "pagoda_worker", "pagoda_engine")
SERVICES = ("torch", "fastapi", "sqlalchemy", "redis", "nats", "grpc", *MEMBERS)
HEAVY = ("torch", "nats", "grpc", "aiohttp", "uvicorn", "redis", "sqlalchemy")
NOWHERE = "http://127.0.0.1:9"


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(make_app(["--help"]), ["--help"])

    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_loads(name: str) -> None:
    result = CliRunner().invoke(make_app([name]), [name, "--help"])

    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_its_version_is_told() -> None:
    result = CliRunner().invoke(make_app(["--version"]), ["--version"])

    assert result.exit_code == 0
    assert result.output == f"pagoda {metadata.version('pagoda-cli')}\n"


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(make_app(["upp"]), ["upp"])

    assert result.exit_code == 2
    assert "upp" in result.output


def run_pagoda(arguments: list[str], *, before: str = "", after: str = "") -> str:
    """Run the command in an interpreter of its own; return what it and `after` print."""
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"sys.argv = ['pagoda', *{arguments!r}]\n{before}\n"
        "from pagoda_cli.app import main\n"
        "try: main()\nexcept SystemExit as end: print('end:', end)\n" + after
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], HEAVY),
        *((["chat", "--help"], SERVICES), (["trace", "--help"], SERVICES)),
        *((["bench", "--help"], SERVICES), (["keys", "--help"], SERVICES)),
        (["tenants", "--help"], SERVICES),
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str], unwanted: tuple[str, ...]) -> None:
    after = f"print('heavy:', [name for name in {unwanted!r} if name in sys.modules])"

    assert "heavy: []" in run_pagoda(arguments, after=after)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["typer", "pagoda_cli.up.command"])
def test_an_interrupt_while_it_imports_is_no_traceback(name: str) -> None:
    before = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {name!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())"
    )
    assert run_pagoda(["up"], before=before) == "end: 130\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["up"], ["serve", "router"]])
def test_without_the_services_one_line_says_what_to_install(arguments: list[str]) -> None:
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in MEMBERS)
    output = run_pagoda(arguments, before=hidden)

    assert output.startswith("end: pagoda: pagoda_r")
    assert output.endswith("is not installed: `pip install 'pagoda-cli[up]'`\n")


def ended_pagoda(
    arguments: list[str], *, before: str = "", stdout: int | IO[bytes] = subprocess.PIPE
) -> tuple[int, str]:
    """Run the command; return its exit status and what it says on stderr."""
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n{before}\n"
        "from pagoda_cli.app import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "admin_key", "line"),
    [
        (["ledger", "balance", "--url", "http://[::1"], "", "'http://[::1' is no URL of a server"),
        (["ledger", "balance"], "x\r", "PAGODA_GATEWAY_ADMIN_KEY has spaces, control characters"),
        (["chat", "-m", "hi", "--api-key", "ü"], "", "--api-key has spaces, control characters"),
        (["bench", "--api-key", "ü", "-n", "2"], "", "--api-key has spaces, control characters"),
        (["keys", "list", "--url", NOWHERE, "--tenant", "\udcff"], "k", r"'\udcff' is not UTF-8"),
        (["tenants", "create", "\udcff", "--url", NOWHERE], "k", "what was given is not UTF-8"),
        (["chat", "-m", "hi", "--url", "http://a..b"], "", "no host has such a name"),
    ],
)
def test_what_cannot_be_asked_ends_a_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], admin_key: str, line: str
) -> None:
    monkeypatch.setenv("PAGODA_GATEWAY_ADMIN_KEY", admin_key)
    status, said = ended_pagoda(arguments)

    assert status == 2
    assert said.startswith(f"pagoda: {line}")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path))
    before = (
        "import os, pathlib\n"
        "def is_file(self): raise PermissionError(13, os.strerror(13), str(self))\n"
        "pathlib.Path.is_file = is_file"
    )
    status, said = ended_pagoda(["chat", "-m", "hi"], before=before)

    assert (status, said) == (1, f"pagoda: Permission denied: {tmp_path}/env\n")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["", "lambda: print('as CSV, which nobody flushes')"])
def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, command: str, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    before = f"import pagoda_cli.commands as c; c.make_app = lambda _: {command}" if command else ""
    with Path("/dev/full").open("wb") as full:
        ended = ended_pagoda(["--version"], before=before, stdout=full)

    assert ended == (1, "pagoda: cannot write: No space left on device\n")
