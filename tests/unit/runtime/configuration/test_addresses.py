import pytest

from pagoda_runtime.configuration.addresses import endpoint_address
from pagoda_runtime.configuration.settings import CommonSettings, load_settings
from pagoda_runtime.errors import SettingsError


def problem_of(name: str, value: str) -> str:
    with pytest.raises(SettingsError) as raised:
        load_settings(CommonSettings, {name: value})
    (problem,) = raised.value.problems
    return problem


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:abc/0",
        "redis://127.0.0.1:99999/0",
        "redis://127.0.0.1:0/0",
        "redis://127.0.0.1/zzz",
        "redis://127.0.0.1/?db=zzz",
        "unix://",
    ],
)
def test_a_port_or_database_of_redis_that_cannot_be_is_refused(url: str) -> None:
    assert "the port from 1 to 65535, the database a number" in problem_of("PAGODA_REDIS_URL", url)


@pytest.mark.parametrize("name", ["PAGODA_REDIS_URL", "PAGODA_NATS_URL"])
@pytest.mark.parametrize(
    "rest", [":hunter2#x@h:1", ":hunter2/x@h:1", ":1?hunter2@h:1", "h:hunter2"]
)
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(name: str, rest: str) -> None:
    scheme = "redis" if "REDIS" in name else "nats"
    problem = problem_of(name, f"{scheme}://{rest}")
    assert "hunter2" not in problem
    assert "percent-encoded (# is %23" in problem


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://:p%23%40@h:6379/15",
        "rediss://[::1]:1/0?socket_timeout=1",
        "unix:///run/redis.sock?db=1",
        "unix://:p@/run/redis.sock",
    ],
)
def test_urls_of_redis(url: str) -> None:
    assert load_settings(CommonSettings, {"PAGODA_REDIS_URL": url}).redis_url == url


@pytest.mark.parametrize(
    "text", ["nonsense", "http://foo:80", "foo:", ":80", "foo:0", "foo:65536", "a b:80", "::1:80"]
)
def test_an_endpoint_that_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give host:port, such as"):
        endpoint_address(text)


@pytest.mark.parametrize("text", ["", "kvstore:50051", "127.0.0.1:1", "[::1]:65535", "a_b.c-d:80"])
def test_endpoints(text: str) -> None:
    assert endpoint_address(text) == text


@pytest.mark.parametrize(
    "url", ["redis:///0", "redis://:pw@/1", "unix:///run/redis@1.sock", "redis://u:p@h/0?x=a@b"]
)
def test_what_redis_reads_otherwise_is_let_through(url: str) -> None:
    assert load_settings(CommonSettings, {"PAGODA_REDIS_URL": url}).redis_url == url
