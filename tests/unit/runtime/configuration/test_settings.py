from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from pagoda_runtime.configuration.settings import (
    CommonSettings,
    ServiceSettings,
    load_settings,
    validate_environment,
)
from pagoda_runtime.errors import SettingsError


class RouterSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PAGODA_ROUTER_")

    max_pending: int = Field(8, ge=1)
    weights: tuple[float, ...] = (1.0,)


class PlainSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PAGODA_DECODE_", frozen=True)

    max_num_seqs: int = 4


def problems_of(cls: type[BaseSettings], **variables: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as raised:
        load_settings(cls, variables)
    return raised.value.problems


def test_defaults_need_no_variable() -> None:
    common = load_settings(CommonSettings, {"PATH": "/bin"})

    assert (common.http_port, common.home) == (8000, Path(".pagoda"))


def test_values_come_from_the_prefixed_names() -> None:
    settings = load_settings(
        RouterSettings, {"PAGODA_ROUTER_MAX_PENDING": "3", "PAGODA_ROUTER_WEIGHTS": "[1, 2.5]"}
    )

    assert settings == RouterSettings(max_pending=3, weights=(1.0, 2.5))


def test_an_empty_value_counts_as_unset() -> None:
    common = load_settings(CommonSettings, {"PAGODA_TRACE_DIR": "", "PAGODA_HTTP_PORT": ""})

    assert (common.trace_dir, common.http_port) == (None, 8000)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        CommonSettings().http_port = 1


@pytest.mark.parametrize("cls", [RouterSettings, PlainSettings, CommonSettings])
def test_a_mapping_hides_the_process_environment(
    cls: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGODA_DECODE_MAX_NUM_SEQS", "99")
    monkeypatch.setenv("PAGODA_ROUTER_MAX_PENDING", "99")
    monkeypatch.setenv("PAGODA_HTTP_PORT", "99")

    assert "99" not in str(load_settings(cls, {}))


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_DECODE_MAX_NUM_SEQS", "99")

    assert load_settings(PlainSettings).max_num_seqs == 99


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("PAGODA_HTP_PORT", "PAGODA_HTTP_PORT"),
        ("PAGODA_TOPOLGY", "PAGODA_TOPOLOGY"),
        ("PAGODA_ROUTER_MAX_PENDNG", "PAGODA_ROUTER_MAX_PENDING"),
        ("PAGODA_GATEWY_HOST", "PAGODA_GATEWAY_HOST"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, right: str) -> None:
    (problem,) = problems_of(RouterSettings, **{wrong: "1"})

    assert problem == f"{wrong} is no setting; did you mean {right}?"


def test_a_name_like_nothing_points_to_the_list() -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_XYZZY="1")

    assert "docs/configuration.md" in problem


def test_names_of_other_services_are_left_to_them() -> None:
    load_settings(RouterSettings, {"PAGODA_GATEWAY_ANYTHING": "1", "PAGODA_KVSTORE_X": "1"})


def test_every_problem_is_listed() -> None:
    problems = problems_of(
        CommonSettings, PAGODA_HTTP_PORT="x", PAGODA_DTYPE="float8", PAGODA_HTP_PORT="1"
    )

    assert len(problems) == 3
    assert any("PAGODA_HTTP_PORT='x'" in problem and "integer" in problem for problem in problems)
    assert any("PAGODA_DTYPE='float8'" in p and "'bfloat16'" in p for p in problems)


def test_a_number_out_of_range_names_the_limit() -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_HTTP_PORT="70000")

    assert problem.startswith("PAGODA_HTTP_PORT='70000'")
    assert "65535" in problem


@pytest.mark.parametrize("text", ["1,2", "[" * 20_000])
def test_a_structured_value_must_be_json(text: str) -> None:
    (problem,) = problems_of(RouterSettings, PAGODA_ROUTER_WEIGHTS=text)

    assert "not JSON" in problem


def test_secrets_are_not_shown() -> None:
    common = load_settings(CommonSettings, {"PAGODA_NATS_TOKEN": "hunter2"})

    assert common.nats_token.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(common)


def test_validate_environment_leaves_no_name_to_others() -> None:
    with pytest.raises(SettingsError) as raised:
        validate_environment(
            [CommonSettings, RouterSettings],
            {"PAGODA_ROUTER_MAX_PENDING": "0", "PAGODA_DECODE_X": "1", "PAGODA_HTTP_PORT": "1"},
        )

    assert len(raised.value.problems) == 2


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"model_name": "m"}, "m"),
        ({"model": "/models/tiny-llama"}, "tiny-llama"),
        ({"model": "owner/tiny"}, "tiny"),
        ({}, "demo"),
    ],
)
def test_served_model_name(values: dict[str, str], name: str) -> None:
    assert CommonSettings(**values).served_model_name == name  # type: ignore[arg-type]


def test_model_aliases_are_json() -> None:
    settings = load_settings(CommonSettings, {"PAGODA_MODEL_ALIASES": '["gpt-4o-mini", "small"]'})

    assert settings.model_aliases == ["gpt-4o-mini", "small"]


@pytest.mark.parametrize("value", ["gpt-4o-mini", '[""]', '"small"', str(["a"] * 17)])
def test_model_aliases_that_are_no_list_of_names_are_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="PAGODA_MODEL_ALIASES"):
        load_settings(CommonSettings, {"PAGODA_MODEL_ALIASES": value.replace("'", '"')})


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://"])
def test_a_url_that_is_no_redis_is_refused(url: str) -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_REDIS_URL=url)
    assert problem.startswith(f"PAGODA_REDIS_URL='{url}': give redis://")


def test_a_url_that_is_refused_shows_no_password() -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_REDIS_URL="redis//:hidden@host:6379")
    assert problem.startswith("PAGODA_REDIS_URL=(secret): give redis://")


@pytest.mark.parametrize(
    "url",
    ["foo", "localhost:4222", "http://localhost", "nats://", "nats://h:99999", "nats://h:0"],
)
def test_a_url_that_is_no_nats_is_refused(url: str) -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_NATS_URL=url)
    assert problem.startswith(f"PAGODA_NATS_URL='{url}': give nats://host:4222")


@pytest.mark.parametrize("url", ["nats://h", "tls://h:4222", "wss://[::1]:443/nats"])
def test_urls_of_nats(url: str) -> None:
    assert load_settings(CommonSettings, {"PAGODA_NATS_URL": url}).nats_url == url


@pytest.mark.parametrize("value", ["x", "=folder", "a b=folder", "a=", "a=x,", "a=x,b", "a=x=y"])
def test_adapters_that_are_no_names_and_folders_are_refused(value: str) -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_ADAPTERS=value)
    assert problem.startswith(f"PAGODA_ADAPTERS='{value}': ")
    assert "give name=folder,name=folder, such as sql=/adapters/sql" in problem


def test_folders_of_adapters_may_lie_in_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    settings = load_settings(CommonSettings, {"PAGODA_ADAPTERS": "sql=~/sql"})
    assert settings.adapter_folders == {"sql": Path("/home/me/sql")}


def test_folders_of_adapters_below_nobodys_home_are_refused() -> None:
    (problem,) = problems_of(CommonSettings, PAGODA_ADAPTERS="sql=~nobody-here/sql")
    assert problem.endswith("give the path without ~")
