"""What one test session has once, whichever folders it runs."""

from collections.abc import Iterator

import pytest
from support.postgres import Postgres, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL; every test makes databases of its own."""
    with postgres_server() as server:
        yield server
