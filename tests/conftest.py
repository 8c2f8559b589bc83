"""What one test session has once, whichever folders it runs, and which tests share a process."""

import gc
import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest
from support import seeds
from support.postgres import Postgres, postgres_server
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# As `support.seeds` has it: the same examples in every run, unless a seed is named. None of them
# is judged by how long it takes: a busy machine decides that.
hypothesis.settings.register_profile(
    "tests",
    derandomize=seeds.VARIABLE not in os.environ,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")

SHARED_STACK = "tests/e2e/shared_stack/"
SHARED = ("tests/e2e/killed_workers/", "tests/kernels/compile/", "tests/kernels/native/")
"""Folders whose files share what is dear to make: a stack, compiled kernels, compiled libraries."""


class SharingScheduling(LoadFileScheduling):
    """The tests of one file run in one process; so do those of one stack, and of a shared folder.

    What they share, fixtures, the stack or compiled kernels, is so made once, not in each process.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SHARED_STACK):
            topology = "aggregated" if "[aggregated" in nodeid else "disaggregated"
            return f"{SHARED_STACK}{topology}"
        shared = (folder for folder in SHARED if nodeid.startswith(folder))
        return next(shared, None) or str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharingScheduling | None:
    """Let `--dist loadfile` know what is shared by more than a file."""
    return SharingScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what collection makes out of every garbage collection to come.

    A million objects and more, which live to the end: to look through them takes a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL; every test makes databases of its own."""
    with postgres_server() as server:
        yield server
