"""Servers of a stack, with what people call their folders."""

import socket
import subprocess
import time
from pathlib import Path

import pytest

from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.infrastructure import nats_spec, redis_spec
from pagoda_cli.up.ports import pick_port
from pagoda_runtime.messaging.permissions import PERMISSIONS

ODD = 'josé "q" %2F'


def answers(spec: ChildSpec, port: int) -> bool:
    """Start a server and say whether it takes connections, until it ends or 30 s have passed."""
    process = subprocess.Popen(spec.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if process.poll() is not None:
                return False
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            except OSError:
                time.sleep(0.05)  # a poll of another process: there is no event to wait on
        return False
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / ODD
    home.mkdir()
    return home


@pytest.mark.integration
def test_nats_starts_in_any_folder(home: Path) -> None:
    port = pick_port()
    passwords = dict.fromkeys(PERMISSIONS, "p")
    assert answers(nats_spec(home, port=port, passwords=passwords, environ={}), port)
    assert (home / "nats").is_dir()


@pytest.mark.integration
def test_redis_starts_in_any_folder(home: Path) -> None:
    port = pick_port()
    assert answers(redis_spec(home, port=port, password="p", environ={}), port)
