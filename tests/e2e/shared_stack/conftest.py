"""The demo model in each topology: one stack each for the tests of all modules of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stack import Stack, running_stack


@pytest.fixture(scope="session", params=["disaggregated", "aggregated"])
def shared_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Started once: `SharingScheduling` has all its tests run in one process."""
    home: Path = tmp_path_factory.mktemp(request.param)
    with running_stack(home, {"PAGODA_TOPOLOGY": request.param}) as stack:
        yield stack


@pytest.fixture
def any_stack(shared_stack: Stack) -> Iterator[Stack]:
    """The demo model, which others ask too: leave it as it was, and judge counters by differences.

    `@pytest.mark.parametrize("shared_stack", ["aggregated"], indirect=True)` asks for one topology.
    """
    yield shared_stack
    shared_stack.close_clients()
