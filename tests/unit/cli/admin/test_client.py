"""The administration is asked directly, and what goes wrong is said in a line."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from pagoda_cli.admin.client import AdminClient


@pytest.fixture
def other_server() -> Iterator[str]:
    """Speaks no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with contextlib.suppress(OSError):  # nobody came, and the test is over
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"INFO {}\r\n")

        threading.Thread(target=greet, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_GATEWAY_ADMIN_KEY", "secret")


def test_no_proxy_is_sent_the_key(
    monkeypatch: pytest.MonkeyPatch, other_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{other_server}")
    with pytest.raises(typer.Exit):
        AdminClient("http://127.0.0.1:1").ask("GET", "keys")
    assert "refused" in capsys.readouterr().err


def test_a_gateway_without_administration_is_thought_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGODA_GATEWAY_ADMIN_KEY", "")
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path))
    with pytest.raises(typer.Exit):
        AdminClient("http://127.0.0.1:1")
    assert "if that was started with none, it has no administration" in capsys.readouterr().err


def test_a_server_that_speaks_no_http_is_named(
    other_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        AdminClient(f"http://{other_server}").ask("GET", "keys")
    assert f"{other_server}/admin/keys: no HTTP server answers there" in capsys.readouterr().err
