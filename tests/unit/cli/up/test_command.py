import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest
import typer

from pagoda_cli.up.command import _announce, _show_progress, run_up, up
from pagoda_cli.up.home import load_secrets, lock_home
from pagoda_cli.up.plan import make_plan
from pagoda_cli.up.stack import Stack


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "PAGODA_HOME": str(tmp_path / "home"),
        "PAGODA_MODEL": str(model),
        "PAGODA_HTTP_PORT": str(port),
        "PATH": os.environ["PATH"],
    }


def test_all_wrong_settings_are_listed(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_up(environ | {"PAGODA_TOPOLOGI": "x", "PAGODA_ROUTER_HEALTH_PORT": "x"})

    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    assert "did you mean PAGODA_TOPOLOGY?" in output.err
    assert "PAGODA_ROUTER_HEALTH_PORT='x'" in output.err
    assert not Path(environ["PAGODA_HOME"]).exists()


def test_a_missing_model_is_said(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_up(environ | {"PAGODA_MODEL": "/nowhere"}) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_port_in_use_is_said(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", int(environ["PAGODA_HTTP_PORT"])))
        listener.listen()

        assert run_up(environ) == 1
    assert "set PAGODA_HTTP_PORT" in capsys.readouterr().err


def test_a_home_in_use_is_said(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with lock_home(Path(environ["PAGODA_HOME"])):
        assert run_up(environ) == 1
    assert "another `pagoda up`" in capsys.readouterr().err


def announce(environ: dict[str, str]) -> None:
    plan = make_plan(environ)
    lock_home(plan.home).close()
    with contextlib.closing(Stack(plan, load_secrets(plan.home), environ)) as stack:
        _announce(plan, stack)


def test_keys_are_written_where_there_are_any(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    home = Path(environ["PAGODA_HOME"])
    announce(environ)
    assert "OPENAI_API_KEY=" in (home / "env").read_text()
    assert "PAGODA_GATEWAY_ADMIN_KEY=" in (home / "admin.env").read_text()

    announce(environ | {"PAGODA_GATEWAY_ADMIN_KEY": "", "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": ""})
    assert "OPENAI_API_KEY" not in (home / "env").read_text()
    assert not (home / "admin.env").exists()
    assert '"Authorization: Bearer $OPENAI_API_KEY"' in capsys.readouterr().out


def test_what_is_made_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_file(_: object) -> int:
        (tmp_path / "file").touch()
        return 0

    monkeypatch.setattr("pagoda_cli.up.command.run_up", make_file)
    before = os.umask(0o022)
    try:
        with pytest.raises(typer.Exit):
            up()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_line_of_the_terminal_says_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the workers say first: gateways wait for them."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    _show_progress(["gateway (model: nobody)", "decode-1 (model: compiling)"])
    _show_progress([])
    shown = capsys.readouterr().err.replace("\033[K", "").split("\r")

    assert shown == ["", "waiting for decode-1 (model: compiling),"[:39], ""]
