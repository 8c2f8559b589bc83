"""Where a gateway listens."""

import pytest

from pagoda_gateway.http.server import listen
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
