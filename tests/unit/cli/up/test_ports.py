import contextlib
import socket
import sys

import pytest

from pagoda_cli.up import ports
from pagoda_cli.up.errors import PortInUseError, StackError
from pagoda_cli.up.ports import Ports, pick_port, reachable, require_free


@pytest.fixture
def only_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free one, and all that will be drawn."""
    port = pick_port()
    monkeypatch.setattr(ports, "FIRST_PORT", port)
    monkeypatch.setattr(ports, "LAST_PORT", port)
    return port


def test_a_port_in_use_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(PortInUseError, match="PAGODA_HTTP_PORT"),
    ):
        require_free(listener.getsockname()[1])


def test_a_port_is_free_where_it_is_to_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        require_free(port, "127.0.0.9")
        with pytest.raises(PortInUseError):
            require_free(port, "0.0.0.0")
    for host in ("nosuch host", "192.0.2.77"):  # no port is to blame: the server will say so
        require_free(port, host)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("192.0.2.2", "192.0.2.2"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("fe80::1", "[fe80::1]"),
        ("box.example", "box.example"),
    ],
)
def test_a_server_is_asked_where_it_answers(host: str, name: str) -> None:
    assert reachable(host) == name


def test_picked_ports_are_free_and_distinct() -> None:
    with contextlib.closing(Ports()) as drawn:
        picked = {drawn.pick() for _ in range(20)}
    assert len(picked) == 20
    for port in picked:
        require_free(port)


def test_no_port_is_drawn_twice_or_if_a_setting_names_it(only_port: int) -> None:
    with contextlib.closing(Ports(taken={only_port})) as named, pytest.raises(StackError):
        named.pick()
    with contextlib.closing(Ports()) as drawn:
        assert drawn.pick() == only_port
        with pytest.raises(StackError):
            drawn.pick()


def test_a_machine_without_the_address_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LOOPBACK", "192.0.2.77")
    with (
        contextlib.closing(Ports()) as drawn,
        pytest.raises(StackError, match="nothing can listen on 192"),
    ):
        drawn.pick()


@pytest.mark.skipif(sys.platform != "linux", reason="held on Linux only")
def test_nobody_else_draws_a_port_and_a_server_can_start_on_it_again(only_port: int) -> None:
    with contextlib.closing(Ports()) as drawn:
        drawn.pick()
        for _ in range(2):
            with pytest.raises(StackError):
                pick_port()
            socket.create_server(("127.0.0.1", only_port)).close()
    assert pick_port() == only_port
