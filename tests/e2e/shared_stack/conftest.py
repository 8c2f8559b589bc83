"""The demo model in each topology: one stack each for the tests of all modules of this folder.

Its end is that of the folder's tests, not of the session: an idle stack takes 3 % of a processor.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.otlp_sink import OtlpSink, otlp_sink
from support.stack import Stack, running_stack


@pytest.fixture(scope="package")
def spans_sink() -> Iterator[OtlpSink]:
    """Gets the spans of all processes, which write them to the home as well."""
    with otlp_sink() as sink:
        yield sink


@pytest.fixture(scope="package", params=["disaggregated", "aggregated"])
def shared_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spans_sink: OtlpSink
) -> Iterator[Stack]:
    """Started once: `SharingScheduling` has all its tests run in one process."""
    home: Path = tmp_path_factory.mktemp(request.param)
    environ = {
        "PAGODA_TOPOLOGY": request.param,
        "OTEL_EXPORTER_OTLP_ENDPOINT": spans_sink.endpoint,
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with running_stack(home, environ) as stack:
        yield stack


@pytest.fixture
def any_stack(shared_stack: Stack) -> Iterator[Stack]:
    """The demo model, which others ask too: leave it as it was, and judge counters by differences.

    `@pytest.mark.parametrize("shared_stack", ["aggregated"], indirect=True)` asks for one topology.
    """
    yield shared_stack
    shared_stack.close_clients()
