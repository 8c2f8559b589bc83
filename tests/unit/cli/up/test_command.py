import os
import socket
import stat
from pathlib import Path

import pytest
import typer

from pagoda_cli.up.command import _show_progress, run_up, up
from pagoda_cli.up.home import lock_home


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
