import sys
from pathlib import Path

import pytest

from pagoda_cli.all_settings import all_settings
from pagoda_cli.configuration_page import main, render_names, render_page
from pagoda_runtime.configuration.names import variable_names


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["configuration_page", *arguments])
    return main()


def test_the_page_has_every_variable() -> None:
    page = render_page()

    names = [name for model in all_settings().values() for name in variable_names(model).values()]
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_the_page_shows_default_and_limits() -> None:
    line = next(line for line in render_page().splitlines() if "`PAGODA_HTTP_PORT`" in line)

    assert line == ("| `PAGODA_HTTP_PORT` | int >= 1, <= 65535 | `8000` | Port of the OpenAI API |")


def test_a_written_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = str(tmp_path / "configuration.md")

    assert run(monkeypatch, "--write", page) == 0
    assert run(monkeypatch, "--check", page) == 0


def test_a_stale_page_fails_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "configuration.md"
    page.write_text(render_page().replace("`8000`", "`8001`"))

    assert run(monkeypatch, "--check", str(page)) == 1
    output = capsys.readouterr().out
    assert "-| `PAGODA_HTTP_PORT` | int >= 1, <= 65535 | `8001`" in output
    assert "--write" in output


def test_containers_get_settings_but_no_secrets_folders_or_addresses() -> None:
    names = set(render_names().splitlines())

    assert {"PAGODA_DTYPE", "PAGODA_DECODE_MAX_MODEL_LEN", "PAGODA_GATEWAY_MAX_N"} <= names
    for name in (
        "PAGODA_HOME",
        "PAGODA_HTTP_PORT",
        "PAGODA_NATS_TOKEN",
        "PAGODA_REDIS_URL",
        "PAGODA_GATEWAY_BOOTSTRAP_API_KEY",
        "PAGODA_GATEWAY_LEDGER_URL",
        "PAGODA_KVSTORE_NVME_DIR",
    ):
        assert name not in names
