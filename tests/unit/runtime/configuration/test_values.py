from pathlib import Path

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from pagoda_cli.all_settings import all_settings
from pagoda_runtime.configuration.settings import ServiceSettings, load_settings
from pagoda_runtime.configuration.values import MAX_SECONDS, Seconds
from pagoda_runtime.errors import SettingsError

DURATIONS = [
    (model, field)
    for model in all_settings().values()
    for field in model.model_fields
    if field.endswith("_seconds")
]


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PAGODA_ROUTER_")

    grpc_host: str = "127.0.0.1"
    grpc_port: int | None = None
    num: int = 0
    factor: float = 1.0
    wait_seconds: Seconds = Field(1.0, gt=0)
    name: str = ""
    token: SecretStr = SecretStr("")
    folder: Path | None = None


def problem_of(field: str, value: str) -> str:
    name = f"PAGODA_ROUTER_{field.upper()}"
    with pytest.raises(SettingsError) as raised:
        load_settings(Settings, {name: value})
    (problem,) = raised.value.problems
    assert problem.startswith(f"{name}=")
    return problem


@pytest.mark.parametrize("field", ["factor", "wait_seconds"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999"])
def test_a_number_that_is_not_finite_is_refused(field: str, value: str) -> None:
    assert "finite" in problem_of(field, value)


def test_a_duration_of_more_than_ten_years_is_refused() -> None:
    assert str(MAX_SECONDS) in problem_of("wait_seconds", "1e18")


@pytest.mark.parametrize(("model", "field"), DURATIONS)
def test_every_duration_has_a_limit(model: type[BaseSettings], field: str) -> None:
    limits = [getattr(bound, "le", None) for bound in model.model_fields[field].metadata]
    assert any(limit is not None and limit <= MAX_SECONDS for limit in limits)


@pytest.mark.parametrize("value", [str(2**63), "1" + "0" * 23])
def test_an_integer_that_no_database_has_room_for_is_refused(value: str) -> None:
    assert f"must be at most {2**63 - 1}" in problem_of("num", value)


def test_the_largest_integer_is_taken() -> None:
    assert load_settings(Settings, {"PAGODA_ROUTER_NUM": str(2**63 - 1)}).num == 2**63 - 1


@pytest.mark.parametrize("field", ["grpc_port", "num"])
@pytest.mark.parametrize("value", ["18102.0", "1_000", "1e3", "\u0661"])
def test_an_integer_that_is_not_in_digits_is_refused(field: str, value: str) -> None:
    assert "must be an integer, in digits alone" in problem_of(field, value)


@pytest.mark.parametrize(("value", "num"), [(" 7 ", 7), ("+7", 7), ("-7", -7)])
def test_an_integer_may_have_a_sign_and_space(value: str, num: int) -> None:
    assert load_settings(Settings, {"PAGODA_ROUTER_NUM": value}).num == num


@pytest.mark.parametrize("value", ["hunter2\r", "hunter2\n", " hunter2", "hunter2 "])
def test_a_secret_with_a_line_ending_is_refused_and_not_shown(value: str) -> None:
    problem = problem_of("token", value)
    assert "looks like the line ending of a file" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize("value", ["hunter2\x00x", "hunter2\nx", "hunter2\u00e9"])
def test_a_secret_that_no_header_carries_is_refused_and_not_shown(value: str) -> None:
    problem = problem_of("token", value)
    assert "characters" in problem
    assert "hunter2" not in problem


def test_a_text_with_a_line_ending_is_refused() -> None:
    assert "looks like the line ending of a file" in problem_of("name", "model\r")


def test_a_text_may_be_of_any_language() -> None:
    assert load_settings(Settings, {"PAGODA_ROUTER_NAME": "\u6a21 \u578b"}).name == "\u6a21 \u578b"


def test_a_host_that_can_be_none_is_refused() -> None:
    assert "must be a host's name or IP address" in problem_of("grpc_host", "bad host")


@pytest.mark.parametrize("value", ["::1", "[::]", "fe80::1%eth0", "my_host.example", "0.0.0.0"])
def test_hosts(value: str) -> None:
    assert load_settings(Settings, {"PAGODA_ROUTER_GRPC_HOST": value}).grpc_host == value


def test_a_folder_below_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    settings = load_settings(Settings, {"PAGODA_ROUTER_FOLDER": "~/data"})
    assert settings.folder == Path("/home/me/data")


def test_a_folder_below_nobodys_home_is_refused() -> None:
    assert "give the path without ~" in problem_of("folder", "~nobody-here/data")
