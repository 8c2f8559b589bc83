"""Fixtures of the golden tests."""

from collections.abc import Callable

import pytest
from support.oracle import Oracle
from support.tiny_checkpoints import FAMILIES, make_tiny_checkpoint


@pytest.fixture(scope="session")
def make_oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Oracle]:
    def make(family: str, **overrides: object) -> Oracle:
        folder = tmp_path_factory.mktemp(family)
        return Oracle(make_tiny_checkpoint(folder, family, **overrides))

    return make


@pytest.fixture(scope="session", params=FAMILIES)
def oracle(request: pytest.FixtureRequest, make_oracle: Callable[..., Oracle]) -> Oracle:
    return make_oracle(request.param)
