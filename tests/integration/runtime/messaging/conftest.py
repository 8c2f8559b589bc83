from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Server, nats_server, settings_for

from pagoda_runtime.configuration.settings import CommonSettings


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop."""
    with nats_server(tmp_path) as server:
        yield server


@pytest.fixture
def own_common(own_nats: Server, tmp_path: Path) -> CommonSettings:
    return settings_for(own_nats, home=tmp_path)
