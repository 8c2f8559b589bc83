"""Stacks that several end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stack import Stack, running_stack


@pytest.fixture(scope="session", params=["disaggregated", "aggregated"])
def any_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """The demo model in each topology."""
    home: Path = tmp_path_factory.mktemp(request.param)
    with running_stack(home, {"PAGODA_TOPOLOGY": request.param}) as stack:
        yield stack
