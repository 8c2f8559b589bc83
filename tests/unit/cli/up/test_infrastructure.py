"""Servers of a stack, with what people call their folders."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers import Server, free_port

from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.infrastructure import nats_spec, redis_spec
from pagoda_runtime.messaging.permissions import PERMISSIONS

pytestmark = pytest.mark.integration

ODD = 'josé "q" %2F'


@contextlib.contextmanager
def started(spec: ChildSpec, port: int) -> Iterator[None]:
    """A server that takes connections."""
    server = Server([*spec.command], port, Path(f"{spec.command[-1]}.log"), secret="", url="")
    try:
        server.start()
        yield
    finally:
        server.stop(kill=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / ODD
    home.mkdir()
    return home


def test_nats_starts_in_any_folder(home: Path) -> None:
    port = free_port()
    passwords = dict.fromkeys(PERMISSIONS, "p")
    with started(nats_spec(home, port=port, passwords=passwords, environ={}), port):
        assert (home / "nats").is_dir()


def test_redis_starts_in_any_folder(home: Path) -> None:
    port = free_port()
    with started(redis_spec(home, port=port, password="p", environ={}), port):
        pass
