"""Where a gateway listens."""

import resource

import pytest

from pagoda_gateway.http.server import MAX_LEAVING, OWN_FILES, _within_files, listen
from pagoda_runtime.errors import StartError


def test_a_port_in_use_is_said_with_its_settings() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError) as raised:
            listen("127.0.0.1", port)
    assert "Address already in use" in str(raised.value)
    assert "PAGODA_HTTP_PORT" in str(raised.value)


def test_an_address_of_another_machine_names_its_setting() -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:0.*PAGODA_GATEWAY_HOST"):
        listen("192.0.2.1", 0)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of open files, which are not this process's."""
    limits = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(2), new))
    return limits


def test_as_many_files_are_allowed_as_connections_need(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert _within_files(3000) == (3000, MAX_LEAVING)
    assert (limits, caplog.messages) == ([4096, 4096], [])


def test_files_that_are_enough_stay_as_they_are(limits: list[int]) -> None:
    limits[0] = 2000
    assert _within_files(800) == (800, MAX_LEAVING)
    assert limits == [2000, 4096]


def test_fewer_files_leave_room_for_fewer_refusals(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert _within_files(3500) == (3500, 4096 - OWN_FILES - 3500)
    assert caplog.messages == []


@pytest.mark.parametrize(("files", "num_served"), [(4096, 3968), (256, 128), (64, 2)])
def test_more_connections_than_files_are_a_warning(
    limits: list[int], caplog: pytest.LogCaptureFixture, files: int, num_served: int
) -> None:
    limits[1] = files
    assert _within_files(8192) == (num_served, 64)
    assert f"8192 connections need more open files than the limit, {files}" in caplog.text
    assert f"{num_served} are served at once, and 64 more refused" in caplog.text
