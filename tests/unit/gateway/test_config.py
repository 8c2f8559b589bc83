"""Settings of the gateway."""

import json
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from pagoda_gateway.config import GatewaySettings
from pagoda_runtime.configuration.settings import load_settings
from pagoda_runtime.errors import SettingsError


def test_ledger_lies_in_home_by_default() -> None:
    settings = load_settings(GatewaySettings, {})
    assert settings.ledger_address(Path("/data")) == "sqlite:////data/ledger.sqlite"
    other = load_settings(GatewaySettings, {"PAGODA_GATEWAY_LEDGER_URL": "postgresql://db/x"})
    assert other.ledger_address(Path("/data")) == "postgresql://db/x"


def test_misspelt_name_refuses_to_start() -> None:
    with pytest.raises(SettingsError, match="PAGODA_GATEWAY_MAX_N"):
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_MAXN": "4"})


def test_key_is_not_printed() -> None:
    settings = load_settings(GatewaySettings, {"PAGODA_GATEWAY_BOOTSTRAP_API_KEY": "sk-secret"})
    assert "sk-secret" not in repr(settings)


def test_further_models_are_json_of_names_and_folders() -> None:
    settings = load_settings(GatewaySettings, {"PAGODA_GATEWAY_MODELS": '{"b": "/models/b"}'})
    assert settings.models == {"b": "/models/b"}


@pytest.mark.parametrize("value", ["/models/b", '["/models/b"]', '{"": "/models/b"}', '{"b": 1}'])
def test_further_models_that_are_no_names_with_folders_are_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="PAGODA_GATEWAY_MODELS"):
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_MODELS": value})


def test_a_key_of_the_administration_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(SettingsError, match="9 characters can be guessed; give 16") as caught:
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_ADMIN_KEY": "hunter2-x"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://me:hunter2@host/db", "not a url hunter2"]
)
def test_other_databases_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(SettingsError, match="give postgresql://") as caught:
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_LEDGER_URL": url})
    assert "hunter2" not in str(caught.value)


def test_a_databases_password_is_not_printed() -> None:
    url = "postgres://me:hunter2@host/db"
    settings = load_settings(GatewaySettings, {"PAGODA_GATEWAY_LEDGER_URL": url})
    assert settings.ledger_address(Path("/data")) == url
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("folder", ["/a%20b", "/a?mode=memory", "/a#b", "/a b", "/\u00e9", "a"])
def test_ledger_lies_in_any_home(folder: str) -> None:
    address = load_settings(GatewaySettings, {}).ledger_address(Path(folder))
    assert make_url(address).database == f"{folder}/ledger.sqlite"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:abc/d",
        "postgresql://u:hunter2@127.0.0.1:99999/d",
        "postgresql://u:hunter2@x@127.0.0.1/d",
    ],
)
def test_a_database_whose_address_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(
        SettingsError, match=r"the port from 1 to 65535.* percent-encoded"
    ) as caught:
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_LEDGER_URL": url})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql:///d?host=/run", "postgresql://u:a#b/c@h:5432/d"])
def test_databases_as_sqlalchemy_reads_them(url: str) -> None:
    settings = load_settings(GatewaySettings, {"PAGODA_GATEWAY_LEDGER_URL": url})
    assert settings.ledger_address(Path("/data")) == url


def test_a_redis_of_limits_whose_port_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"LIMITS_REDIS_URL=.secret.: give redis://"):
        load_settings(
            GatewaySettings, {"PAGODA_GATEWAY_LIMITS_REDIS_URL": "redis://127.0.0.1:99999/0"}
        )


def test_a_file_of_policies_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"SAFETY_FILE='/nope.yaml': there is no such file"):
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_SAFETY_FILE": "/nope.yaml"})


def test_a_file_of_policies_may_lie_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "policies.yaml").touch()
    settings = load_settings(GatewaySettings, {"PAGODA_GATEWAY_SAFETY_FILE": "~/policies.yaml"})
    assert settings.safety_file == tmp_path / "policies.yaml"


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "https://chat.example", "http://localhost:3000", "http://[::1]:8080", "app://x"],
)
def test_origins_of_pages_as_browsers_send_them(origin: str) -> None:
    given = json.dumps([origin])
    settings = load_settings(GatewaySettings, {"PAGODA_GATEWAY_CORS_ORIGINS": given})
    assert settings.cors_origins == [origin]


@pytest.mark.parametrize(
    ("origin", "meant"),
    [
        ("https://chat.example/", "https://chat.example"),
        ("https://a/b", "https://a"),
        ("HTTPS://Chat.Example", "https://chat.example"),
        ("https://chat.example:443", "https://chat.example"),
        ("chat.example", "https://chat.example"),
        ("localhost:3000", "https://localhost:3000"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_with_what_was_meant(
    origin: str, meant: str
) -> None:
    with pytest.raises(SettingsError, match=f'ORIGINS.*did you mean "{meant}"'):
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_CORS_ORIGINS": json.dumps([origin])})


@pytest.mark.parametrize("origin", ["", "https://", "https://*.example", "https://a:port"])
def test_what_is_no_origin_at_all_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"no page has the origin '[^']*'; give scheme://host"):
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_CORS_ORIGINS": json.dumps([origin])})


def test_a_part_that_is_larger_than_the_whole_is_refused() -> None:
    names = [f"PAGODA_GATEWAY_{name}" for name in ("BODY_BUDGET_BYTES", "MAX_BODY_BYTES")]
    values = dict(zip(names, ("2000000", "2000001"), strict=True))
    with pytest.raises(SettingsError, match=r"{} is 2000000, .*{} \(2000001\)".format(*names)):
        load_settings(GatewaySettings, values)
    load_settings(GatewaySettings, dict.fromkeys(names, "2000000"))


def test_files_of_a_small_disk_may_be_smaller_than_a_file_may() -> None:
    values = {"TOTAL_FILE_BYTES": "2000000", "MAX_FILE_BYTES": "2000001"}
    load_settings(GatewaySettings, {f"PAGODA_GATEWAY_{name}": values[name] for name in values})


def test_a_usage_log_without_room_for_what_is_sent_at_once_is_refused() -> None:
    with pytest.raises(SettingsError, match="greater than or equal to 1048576"):
        load_settings(GatewaySettings, {"PAGODA_GATEWAY_USAGE_LOG_BYTES": "4096"})
