"""Where the endpoint comes from, and that a key never goes to another address than its own."""

from pathlib import Path

import pytest

from pagoda_cli.endpoint import (
    DEFAULT_BASE_URL,
    EndpointError,
    resolve_administration,
    resolve_endpoint,
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_BASE_URL", "OPENAI_API_KEY", "PAGODA_MODEL_NAME", "PAGODA_HOME",
        "PAGODA_GATEWAY_ADMIN_KEY",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    lines = (
        "OPENAI_BASE_URL=http://h:1/v1\nexport OPENAI_API_KEY='k'\nPAGODA_MODEL_NAME=demo\nX=1\n"
    )
    (tmp_path / "env").write_text(lines)
    return tmp_path


def test_defaults(tmp_path: Path) -> None:
    endpoint = resolve_endpoint(home=tmp_path)
    assert (endpoint.base_url, endpoint.api_key, endpoint.model) == (DEFAULT_BASE_URL, "", "")


def test_env_file_of_the_stack(home: Path) -> None:
    endpoint = resolve_endpoint(home=home)
    assert (endpoint.base_url, endpoint.api_key, endpoint.model) == ("http://h:1/v1", "k", "demo")
    assert endpoint.headers["Authorization"] == "Bearer k"
    assert endpoint.root_url == "http://h:1"


def test_home_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_HOME", str(home))
    assert resolve_endpoint().api_key == "k"


def test_environment_wins_over_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    assert resolve_endpoint(home=home).api_key == "mine"


def test_flags_win(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    endpoint = resolve_endpoint(url="http://h:1", api_key="flag", model="m", home=home)
    assert (endpoint.base_url, endpoint.api_key, endpoint.model) == ("http://h:1/v1", "flag", "m")


def test_the_stacks_key_stays_with_the_stacks_address(home: Path) -> None:
    endpoint = resolve_endpoint(url="http://elsewhere:1", home=home)
    assert (endpoint.base_url, endpoint.api_key, endpoint.model) == (
        "http://elsewhere:1/v1",
        "",
        "",
    )


def test_the_key_is_not_in_the_repr(home: Path) -> None:
    assert "'k'" not in repr(resolve_endpoint(home=home))


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("host:9", "http://host:9/v1"),
        ("https://host/", "https://host/v1"),
        ("https://host/openai/v1/", "https://host/openai/v1"),
    ],
)
def test_url_forms(given: str, used: str, tmp_path: Path) -> None:
    assert resolve_endpoint(url=given, home=tmp_path).base_url == used


def test_the_administrations_key_stays_with_the_stacks_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "admin.env").write_text("OPENAI_BASE_URL=http://h:1/v1\nPAGODA_GATEWAY_ADMIN_KEY=a\n")
    here = resolve_administration(home=home)
    assert (here.root_url, here.api_key) == ("http://h:1", "a")
    assert resolve_administration(url="http://elsewhere:1", home=home).api_key == ""
    monkeypatch.setenv("PAGODA_GATEWAY_ADMIN_KEY", "mine")
    assert resolve_administration(url="http://elsewhere:1", home=home).api_key == "mine"


@pytest.mark.parametrize("key", ["secret\r", " secret", "sec ret", "sécret"])
@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "PAGODA_GATEWAY_ADMIN_KEY"])
def test_a_key_that_no_header_holds_is_refused_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    monkeypatch.setenv(name, key)
    resolve = resolve_endpoint if name == "OPENAI_API_KEY" else resolve_administration
    with pytest.raises(EndpointError, match=f"{name} has spaces") as caught:
        resolve(home=tmp_path)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://[::1", "http://h/ x"]
)
def test_what_is_no_url_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(EndpointError, match="is no URL of a server"):
        resolve_endpoint(url=url, home=tmp_path)


def test_a_home_may_be_written_with_a_tilde(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home.parent))
    monkeypatch.setenv("PAGODA_HOME", f"~/{home.name}")
    assert resolve_endpoint().model == "demo"
