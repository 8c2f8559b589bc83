"""What one test session has once, whichever folders it runs, and which tests share a process."""

from collections.abc import Iterator

import pytest
from support.postgres import Postgres, postgres_server
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SHARED_STACK = "tests/e2e/shared_stack/"


class FilesAndStacks(LoadFileScheduling):
    """The tests of one file run in one process, and so do those of one shared stack.

    What they share, a module's fixtures or the stack, is so made once and not in every process.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SHARED_STACK):
            topology = "aggregated" if "[aggregated" in nodeid else "disaggregated"
            return f"{SHARED_STACK}{topology}"
        return str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndStacks | None:
    """Let `--dist loadfile` know of stacks."""
    return FilesAndStacks(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL; every test makes databases of its own."""
    with postgres_server() as server:
        yield server
